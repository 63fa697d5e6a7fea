"""A configuration as TOML text: where every value came from, and the reference of all keys."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from attnres_train.config.keys import NONE_TEXT, Key, all_keys, section_names
from attnres_train.config.run_config import RunConfig

_REFERENCE_HEAD = f"""\
# Every key of the configuration with its default. Made by `python -m attnres_train.config.show`.
#
# A run states what differs, like configs/quickstart.toml; any key can also be given on the command line:
#     --section.key value
# Required keys have no default; the values they carry here are only examples.
# A key that may be "{NONE_TEXT}" is off, or derived, where it is "{NONE_TEXT}".
"""

_EXAMPLES: Mapping[str, Any] = {
    "model.num_layers": 16,
    "model.hidden_size": 1024,
    "model.ffn_hidden_size": 2816,
    "model.num_attention_heads": 16,
    "training.global_batch_size": 64,
    "training.micro_batch_size": 2,
    "training.sequence_length": 2048,
    "training.steps": 10_000,
}
"""Values for the required keys of the reference."""


def resolved_toml(config: RunConfig, origins: Mapping[str, str]) -> str:
    """Every key of `config`, each with its origin as a comment; loads again to an equal `RunConfig`.

    A key that is None by default is a comment; one that was set to None says "none".
    """
    keys = all_keys()
    values = config_values(config, keys)
    lines = ["# The resolved configuration; each comment says where the value came from."]
    for section in section_names(keys):
        rows = []
        for dotted, key in ((dotted, key) for dotted, key in keys.items() if key.section == section):
            value, origin = values[dotted], origins[dotted]
            rows.append((_assignment(key, value, commented=value is None and origin == "default"), origin))
        width = min(max(len(row) for row, _ in rows), 60)
        lines += ["", f"[{section}]", *(f"{row:<{width}}  # {_one_line(origin)}" for row, origin in rows)]
    return "\n".join(lines) + "\n"


def reference_toml() -> str:
    """Every key with its default, what it takes and its help: the text of `configs/reference.toml`."""
    keys = all_keys()
    lines = [_REFERENCE_HEAD.rstrip()]
    for section in section_names(keys):
        lines += ["", "", f"[{section}]"]
        for key in (key for key in keys.values() if key.section == section):
            value = _EXAMPLES[key.dotted] if key.required else key.default
            kind = f"Required; {key.takes}." if key.required else f"{key.takes[0].upper()}{key.takes[1:]}."
            lines += ["", *_comment(key.help), *_comment(kind), _assignment(key, value, commented=value is None)]
    return "\n".join(lines) + "\n"


def config_values(config: RunConfig, keys: Iterable[str]) -> dict[str, Any]:
    """The value of every dotted key."""
    values = {}
    for dotted in keys:
        value: Any = config
        for name in dotted.split("."):
            value = getattr(value, name)
        values[dotted] = value
    return values


def _assignment(key: Key, value: Any, *, commented: bool) -> str:
    return f"{'# ' if commented else ''}{key.name} = {toml_value(value)}"


def toml_value(value: Any) -> str:
    """`value` in TOML; None is the text that the loader reads as None."""
    if value is None:
        return f'"{NONE_TEXT}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON and TOML agree on basic strings, but TOML also wants DEL escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_value(name)} = {toml_value(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(inner) for inner in value) + "]"
    return repr(value)


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, 105)]


def _one_line(text: str) -> str:
    """`text` fit for a comment: a file's name may hold what a comment must not."""
    return text if text.isprintable() else json.dumps(text)


if __name__ == "__main__":
    print(reference_toml(), end="")
