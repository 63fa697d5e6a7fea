"""The configuration of a checkpoint, for whoever computes with it now, on ranks of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnres_train.checkpoint.fit import FREE_TO_CHANGE, as_it_was, changed_settings
from attnres_train.checkpoint.manifest import Manifest
from attnres_train.config.keys import all_keys
from attnres_train.config.load import Loaded, load_checked
from attnres_train.config.show import config_values, toml_value
from attnres_train.errors import Problem, Refused

_OF_THE_LAYOUT = ("parallel.", "engine.")


def configuration(checkpoint: Path, manifest: Manifest, overrides: Sequence[str], world: int) -> Loaded:
    """What the checkpoint was trained with, on one rank or as the `overrides` lay it out, checked for `world` ranks.

    Raises Refused for what is wrong with it, and for overrides that make another model.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.toml"
        path.write_text(as_toml(manifest.settings), encoding="utf-8")
        try:
            loaded = load_checked(path, overrides, world, "check")
        except Refused as refusal:  # of a file that nobody will see
            where = f"the settings in {checkpoint}"
            raise Refused([replace(p, message=p.message.replace(str(path), where)) for p in refusal.problems]) from None
    changed = changed_settings(as_it_was(manifest.settings), config_values(loaded.config, all_keys()))
    others = {key: pair for key, pair in changed.items() if key.startswith(("model.", "residual."))}
    problems = [
        Problem(key, f"was {was!r} in {checkpoint}, is {now!r}: another model", "remove it")
        for key, (was, now) in others.items()
        if key not in FREE_TO_CHANGE
    ]
    if problems:
        raise Refused(problems)
    return loaded


def as_toml(settings: Mapping[str, Any]) -> str:
    """Settings by dotted key, but for those of the layout, which were of the ranks that trained. Pure."""
    keys = all_keys()
    sections: dict[str, list[str]] = {}
    for dotted, value in settings.items():
        key = keys.get(dotted)
        # What this version does not know stays, so that it is named; what is off by default need not be said.
        unsaid = key is not None and (dotted.startswith(_OF_THE_LAYOUT) or (value is None and key.default is None))
        if not unsaid:
            section, _, name = dotted.rpartition(".")
            sections.setdefault(section, []).append(f"{name} = {toml_value(value)}")
    return "\n".join(f"[{name}]\n" + "\n".join(rows) + "\n" for name, rows in sections.items())
