"""Dotted command-line overrides: `--section.key value` or `--section.key=value`."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnres_train.config.keys import Key
from attnres_train.config.names import unknown_key
from attnres_train.errors import Problem


@dataclass(frozen=True)
class Overrides:
    """What the flags set, by dotted name, as values and as they were written, and what could not be read of them."""

    values: Mapping[str, Any]
    written: Mapping[str, str]
    problems: tuple[Problem, ...]


_LACKS_DASHES = re.compile(r"[a-z_]+(\.[a-z_]+)+=")


def separate(arguments: Sequence[str], own_flags: Collection[str]) -> tuple[list[str], list[str]]:
    """Split a command line into what the command reads itself and the overrides, order kept in both.

    `own_flags` are the command's flags (`--world`); whatever else starts with `--` is an override, with the
    value that follows it, and so is `section.key=value`, which lacks its dashes. A flag without a dot cannot be an
    override and does not swallow a `.toml` file.
    """
    own: list[str] = []
    overrides: list[str] = []
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        name, equals, _ = argument.partition("=")
        if _LACKS_DASHES.match(argument):
            overrides.append(argument)
            continue
        if not argument.startswith("--") or name in own_flags:
            own.append(argument)
            continue
        overrides.append(argument)
        following = arguments[position] if position < len(arguments) else "--"
        if not equals and not following.startswith("--") and ("." in name or not following.endswith(".toml")):
            overrides.append(following)
            position += 1
    return own, overrides


def parse_overrides(arguments: Sequence[str], known: Mapping[str, Key]) -> Overrides:
    """Read the flags of `separate`; `known` are the keys there are.

    A value is read as TOML writes it (`true`, `3e-4`, `[3, 4]`, `{a = 0.5}`), else as the text it is. A key that takes
    a text takes what was written: of TOML only quotes mean something there, and brackets where it takes a table, too.
    """
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    problems: list[Problem] = []
    position = 0
    while position < len(arguments):
        flag, equals, text = arguments[position].partition("=")
        position += 1
        has_value = bool(equals)
        if not equals and position < len(arguments) and not arguments[position].startswith("--"):
            text, has_value = arguments[position], True
            position += 1
        problem = _flag_problem(flag, has_value, values, known)
        if problem is None:
            key = known[flag[2:]]
            values[key.dotted], written[key.dotted] = _value_of(key, text), text
        else:
            problems.append(problem)
    return Overrides(values, written, tuple(problems))


def _value_of(key: Key, text: str) -> Any:
    value = override_value(text)
    of_toml: Any = str | dict | list if "a table" in key.takes else str
    return text if key.takes_text and not isinstance(value, of_toml) else value


def override_value(text: str) -> Any:
    """`text` as a TOML value if it is one, else `text`. Dates are texts: no key takes a date."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    dates = (datetime.date, datetime.time)
    return text if len(parsed) > 1 or isinstance(parsed["value"], dates) else parsed["value"]


def _flag_problem(flag: str, has_value: bool, values: Mapping[str, Any], known: Collection[str]) -> Problem | None:
    if not flag.startswith("--"):
        known_as = f"--{flag} value" if flag in known else "--section.key value"
        return Problem("command line", f"{flag!r} belongs to no flag", f"write overrides as {known_as}")
    name = flag[2:]
    if name not in known:
        return unknown_key(name, "command line", known, flag=True)
    if not has_value:
        return Problem(flag, "has no value (command line)", f"write {flag} VALUE; a switch takes true or false")
    if name in values:
        message = f"given twice, {values[name]!r} first (command line)"
        return Problem(flag, message, "keep one of the two")
    return None
