"""Which settings a run was trained with, from which step to which: `settings.jsonl`, a line wherever they changed.

`config.toml` has only the last ones. Both are written once a step has been trained with them, so that a launch that
trains nothing claims nothing; what a resume takes back goes from here, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnres_train.observe.record_lines import parse_record
from attnres_train.observe.sinks import guarded_lines

FILE_NAME = "settings.jsonl"
RANKS = "ranks"
"""Stands beside the keys of the configuration: the other degrees of the grid are among them."""


@dataclass(frozen=True)
class Used:
    """The settings of the steps from `first` to `last`, both included; `last` None: to the end."""

    first: int
    last: int | None
    settings: Mapping[str, Any]
    """By dotted key, and the number of ranks."""
    changed: Mapping[str, tuple[Any, Any]]
    """Key -> (was, is), against the steps before; nothing for the first ones that are known."""

    @property
    def steps(self) -> str:
        return f"{self.first} to {self.last}" if self.last is not None else f"from {self.first}"

    def __str__(self) -> str:
        if not self.changed:
            return f"the first that are known; {RANKS} {_json(self.settings.get(RANKS))}"
        told = (f"{key} {_json(now)} (was {_json(was)})" for key, (was, now) in self.changed.items())
        return ", ".join(told)


def read_history(folder: Path) -> list[Used]:
    """What `settings.jsonl` of a run folder says, oldest first; lines that cannot be read are passed over."""
    path = folder / FILE_NAME
    try:
        lines = path.read_bytes().splitlines() if path.is_file() else []
    except OSError:  # damaged: then nobody knows, as in a run of an older version
        return []
    records = [record for line in lines if (record := parse_record(line)) and isinstance(record.get("settings"), dict)]
    found: list[Used] = []
    for record, following in zip(records, [*records[1:], None], strict=False):
        settings, last = record["settings"], following["step"] - 1 if following else None
        changed = _changes(found[-1].settings, settings) if found else {}
        found.append(Used(record["step"], last, settings, changed))
    return found


def keep_history(folder: Path, began: int, ranks: int, settings: Mapping[str, Any]) -> str | None:
    """Write that from the step after `began` on these settings are used; in words, None where they are as before."""
    mine = json.loads(json.dumps({RANKS: ranks, **settings}))
    before = [used for used in read_history(folder) if used.first <= began]
    lines = guarded_lines(folder / FILE_NAME, began)
    try:
        if before and not _changes(before[-1].settings, mine):
            return None
        lines.write(began + 1, {"settings": mine})
    finally:
        lines.close()
    history = read_history(folder)
    return str(history[-1]) if history else None


def rows(history: Sequence[Used]) -> list[list[str]]:
    """Steps and words of each line, where there is more than one to tell."""
    return [[used.steps, str(used)] for used in history] if len(history) > 1 else []


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Key -> (was, is); none is what is not there."""
    keys = dict.fromkeys([*before, *now])
    return {key: (before.get(key), now.get(key)) for key in keys if before.get(key) != now.get(key)}


def _json(value: Any) -> str:
    return "none" if value is None else json.dumps(value)
