"""TOML with line numbers, read on past errors so that one reading names them all.

`tomllib` is the authority: what it accepts is taken as it says, and it alone tells where a statement ends. This
module gives it one statement at a time, for the line of every key and to go on after a fault.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

KeyPath = tuple[str, ...]
_UNREADABLE = (ValueError, RecursionError)
"""What is no TOML, and what Python makes of thousands of digits or brackets."""
_ENDS_EARLY = "(at end of document)"
_ON_FIRST_LINE = "(at line 1,"
_BEGINS = re.compile(r"\s*(\[.*\]\s*(#.*)?$|[^#=]+=)")
"""A line on which a statement seems to begin, to go on at after one that never ended."""


@dataclass(frozen=True)
class Fault:
    """Something that is not TOML, at a line counted from 1; `key` is the dotted key it is about, if known."""

    line: int
    key: str | None
    message: str
    remedy: str
    hides_value: bool = False
    """Whether a value was lost, so that what depends on it cannot be judged."""


@dataclass
class LocatedToml:
    """The values of a TOML text, the line of every key and table in it, and what could not be read.

    A key that stands twice keeps its first value.
    """

    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def line_of(self, path: KeyPath) -> int | None:
        """The line that sets `path`, or begins what it lies in or what lies in it."""
        return next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)


def read_located(text: str) -> LocatedToml:
    """Read `text`; never raises, see `LocatedToml.faults`."""
    text = text.replace("\r\n", "\n")
    document = LocatedToml()
    _read_statements(document, text.split("\n"))
    try:
        document.data = tomllib.loads(text)
        document.faults.clear()
    except _UNREADABLE as error:
        if not document.faults:
            document.faults.append(_syntax_fault(error, "", 1, ()))
    return document


def _read_statements(document: LocatedToml, lines: list[str]) -> None:
    """Take what can be read of `lines` into `document`, and the faults."""
    table: KeyPath = ()
    headers: dict[KeyPath, int] = {}
    number = 0
    while number < len(lines):
        begin, number = number, number + 1
        first = lines[begin].strip()
        if not first or first.startswith("#"):
            continue
        try:
            statement, number = _statement(lines, begin)
        except _UNREADABLE as error:
            document.faults.append(_syntax_fault(error, first, begin + 1, table))
            if _ON_FIRST_LINE not in str(error):  # what opened there swallows lines
                while number < len(lines) and not _BEGINS.match(lines[number]):
                    number += 1
            continue
        if first.startswith("["):
            table, statement = _path(statement), {}
            if headers.setdefault(table, begin + 1) <= begin:
                document.faults.append(_twice(f"[{'.'.join(table)}]", table, headers[table], begin + 1))
        _place(document, table, statement, begin + 1)


def _statement(lines: list[str], begin: int) -> tuple[dict[str, Any], int]:
    """The statement that begins on a line, as a table, and the number of the line behind it.

    Raises what `tomllib` does.
    """
    end = begin + 1
    while True:
        try:
            return tomllib.loads("\n".join(lines[begin:end]) + "\n"), end
        except tomllib.TOMLDecodeError as error:
            if end == len(lines) or not str(error).endswith(_ENDS_EARLY):
                raise
        end += 1


def _place(document: LocatedToml, table: KeyPath, statement: dict[str, Any], line: int) -> None:
    """Put `statement` below `table`, of which what is there already stays."""
    for name in reversed(table):
        statement = {name: statement}
    clashes = list(_merged(document.data, statement, ()))
    for path, is_value in clashes:
        shown, first = ".".join(path), document.line_of(path)
        below = f"{shown} is a value (line {first}), so nothing can stand below it"
        value = Fault(line, shown, below, "remove one of the two", hides_value=True)
        document.faults.append(value if is_value else _twice(shown, path, first, line))
    path = _path(statement)
    for length in range(1, len(path) + 1) if not clashes else ():
        document.lines.setdefault(path[:length], line)


def _merged(into: dict[str, Any], tree: Mapping[str, Any], above: KeyPath) -> Iterator[tuple[KeyPath, bool]]:
    """Add `tree` to `into`; yields what both hold, and whether that is a value where `tree` has a table."""
    for name, value in tree.items():
        path = (*above, name)
        if name not in into:
            into[name] = value
        elif isinstance(into[name], dict) and isinstance(value, dict):
            yield from _merged(into[name], value, path)
        else:
            yield path, isinstance(value, dict)


def _twice(shown: str, path: KeyPath, first: int | None, line: int) -> Fault:
    message = f"{shown} stands twice, on line {first} and on line {line}"
    return Fault(line, ".".join(path), message, "keep one of the two")


def _syntax_fault(error: Exception, first: str, line: int, table: KeyPath) -> Fault:
    """The fault of a statement that begins with `first` on `line`, under the header of `table`."""
    reason, _, place = str(error).partition(" (at ")
    inner = re.match(r"line (\d+),", place)
    offset = int(inner[1]) - 1 if inner else 0
    assignment = re.match(r"([\w.-]+)[ \t]*=[ \t]*(.*)", first)
    key = ".".join((*table, assignment[1])) if assignment else None
    if not isinstance(error, tomllib.TOMLDecodeError):
        message, remedy = "has thousands of digits or brackets, more than can be read", "write a shorter value"
    elif reason.startswith("Unclosed") or str(error).endswith(_ENDS_EARLY):
        message, remedy, offset = "a bracket or quote that opens here is never closed", "close it", 0
    elif assignment and not offset:
        message, remedy = f"{assignment[2]} is not TOML", "text stands in double quotes, numbers without units"
    else:
        message = f"not TOML: {reason[0].lower()}{reason[1:]}"
        remedy = "TOML writes `key = value` and `[section]`"
    return Fault(line + offset, key, message, remedy, hides_value=True)


def _path(tree: Any) -> KeyPath:
    """The names down a chain of one-entry tables: `{a: {b: 0}}` is `(a, b)`."""
    if isinstance(tree, list) and tree:
        return _path(tree[0])
    if not isinstance(tree, dict) or len(tree) != 1:
        return ()
    ((name, inner),) = tree.items()
    return name, *_path(inner)
