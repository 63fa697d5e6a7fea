"""Values by dotted name -> a frozen `RunConfig`, or what is wrong with each of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from attnres_train.config.keys import NONE_TEXT, Key
from attnres_train.config.names import nearest_word
from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem
from attnres_train.paths import expanded


def build(
    values: Mapping[str, Any],
    keys: Mapping[str, Key],
    where: Callable[[str], str],
    written: Mapping[str, str] | None = None,
) -> tuple[RunConfig | None, list[Problem], list[str]]:
    """The configuration, the problems of values, and the required keys that are missing.

    The configuration is None where there is either. The text "none" (None, null) is None for every key that may be
    None; other texts are expanded as a shell does. `written` is what the command line said, by key.
    """
    wanted: dict[str, Any] = {}
    problems: list[Problem] = []
    for dotted, value in values.items():
        try:
            wanted[dotted] = _meant(keys[dotted], value)
        except ValueError as error:
            remedy = "write it out, or set it where the run is launched" if value else f"write {keys[dotted].takes}"
            problems.append(Problem(dotted, f"{show_value(value)} {error} ({where(dotted)})", remedy))
    unreadable = values.keys() - wanted.keys()
    wrong = {dotted for dotted, value in wanted.items() if not _is_plain(value)}
    missing: list[str] = []
    config = None
    try:
        text = json.dumps(_nested({k: v for k, v in wanted.items() if k not in wrong}, keys))
        # JSON mode: strict as to types, yet a list of TOML may become a tuple and 1 a float.
        config = TypeAdapter(RunConfig).validate_json(text)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            dotted = _dotted(detail["loc"], keys)
            # Deeper than the key, it is an item of a list that is missing, not the key.
            if detail["type"] != "missing" or len(detail["loc"]) > len(dotted.split(".")):
                wrong.add(dotted)
            elif dotted not in wrong | unreadable:
                missing.append(dotted)
    for dotted in (dotted for dotted in values if dotted in wrong):
        value = values[dotted]
        shown = show_value(value) if isinstance(value, str) else (written or {}).get(dotted, show_value(value))
        problems.append(_wrong_value(keys[dotted], value, shown, where(dotted)))
    return (None if problems else config), problems, missing


def _meant(key: Key, value: Any) -> Any:
    """`value` with "none" and the texts of a path read. Raises ValueError, in words, for a text that is none."""
    if key.may_be_none and isinstance(value, str) and value.lower() in (NONE_TEXT, "null"):
        return None  # also as Python and YAML spell it: no folder is meant to be called so
    if key.takes_text and isinstance(value, str):
        return expanded(value)
    if key.takes_text and isinstance(value, dict):
        texts = {expanded(name) if name else name: inner for name, inner in value.items()}
        if len(texts) < len(value):
            raise ValueError("names the same path twice")
        return texts
    return value


def _is_plain(value: Any) -> bool:
    """Whether JSON can say `value`: no inf, no nan, no date, at any depth."""
    if isinstance(value, dict | list):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool | int | str)


def _nested(values: Mapping[str, Any], keys: Mapping[str, Key]) -> dict[str, Any]:
    """`{"a.b": 1}` as `{"a": {"b": 1}}`, every section there even if empty."""
    tree: dict[str, Any] = {}
    for key in keys.values():
        table = tree
        for name in key.section.split("."):
            table = table.setdefault(name, {})
        if key.dotted in values:
            table[key.name] = values[key.dotted]
    return tree


def _dotted(location: tuple[int | str, ...], keys: Mapping[str, Key]) -> str:
    """The key that a location of pydantic's is about: it goes on into list positions and union branches."""
    names = [str(part) for part in location]
    return next(dotted for n in range(1, len(names) + 1) if (dotted := ".".join(names[:n])) in keys)


def _wrong_value(key: Key, value: Any, shown: str, where: str) -> Problem:
    message = f"{shown} is not {key.takes} ({where})"
    remedy = f"write {key.takes}"
    if isinstance(value, float) and not math.isfinite(value):
        message = f"{value} is not a finite number ({where})"
    elif isinstance(value, str):
        remedy = _remedy_for_text(key, value) or remedy
    elif key.is_list and type(value) is int:
        remedy = f"write a list: [{value}]"
    elif isinstance(value, float) and value.is_integer() and "an integer" in key.takes:
        remedy = f"write {int(value)}"
    elif key.takes_text and not isinstance(value, list | dict):
        remedy = "a text stands in double quotes"
    return Problem(key.dotted, message, remedy)


def _remedy_for_text(key: Key, value: str) -> str | None:
    near = nearest_word(value, key.choices)
    if near:
        return f'write a list: ["{near}"]' if key.is_list else f'did you mean "{near}"?'
    unquoted = value.strip().replace("_", "")
    is_integer = unquoted.isdigit() and "an integer" in key.takes
    return f"write it without quotes: {unquoted}" if is_integer else None


def show_value(value: Any) -> str:
    """`value` as a user would write it."""
    if isinstance(value, bool | str | list | dict | int) or (isinstance(value, float) and math.isfinite(value)):
        try:
            return json.dumps(value, ensure_ascii=False)
        except TypeError:
            return str(value)
    return str(value)
