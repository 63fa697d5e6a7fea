"""TOML with line numbers, read on past errors so that one reading names them all.

`tomllib` is the authority: what it accepts is taken as it says. This module adds the line of every key, and
where `tomllib` stops at the first fault, goes on statement by statement.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

KeyPath = tuple[str, ...]
_UNREADABLE = (ValueError, RecursionError)
"""What is no TOML, and what Python makes of thousands of digits or brackets."""


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
class Document:
    """The values of a TOML text, the line of every key and table in it, and what could not be read.

    A key that stands twice keeps its first value.
    """

    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def line_of(self, path: KeyPath) -> int | None:
        """The line that sets `path`; failing that, of the nearest thing above it or the first below it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return next((line for known, line in self.lines.items() if known[: len(path)] == path), None)


@dataclass(frozen=True)
class _Statement:
    """A table header, or `key = value` with all lines of its value."""

    line: int
    text: str
    complete: bool


def read_document(text: str) -> Document:
    """Read `text`; never raises, see `Document.faults`."""
    text = text.replace("\r\n", "\n")
    document = Document()
    reader = _Reader(document)
    for statement in _statements(text):
        reader.take(statement)
    try:
        document.data = tomllib.loads(text)
        document.faults.clear()
    except _UNREADABLE as error:
        if not document.faults:
            document.faults.append(_syntax_fault(error, _Statement(1, text, complete=True), ()))
    return document


class _Reader:
    """Merges statements into a document, one at a time."""

    def __init__(self, document: Document):
        self.document = document
        self.table: KeyPath = ()
        self.header_lines: dict[KeyPath, int] = {}

    def take(self, statement: _Statement) -> None:
        try:
            if statement.text.startswith("["):
                self._open_table(statement)
            else:
                self._set(statement)
        except _UNREADABLE as error:
            self.document.faults.append(_syntax_fault(error, statement, self.table))

    def _open_table(self, statement: _Statement) -> None:
        path = _single_path(tomllib.loads(statement.text))
        self.table = path
        if path in self.header_lines:
            self._fault_twice(statement.line, f"[{'.'.join(path)}]", ".".join(path), self.header_lines[path])
            return
        self.header_lines[path] = statement.line
        self.document.lines.setdefault(path, statement.line)
        self._place(path, {}, statement.line)

    def _set(self, statement: _Statement) -> None:
        value: Any = tomllib.loads(statement.text)
        key_text, _ = _split_at_equals(statement.text)
        key = _single_path(tomllib.loads(f"{key_text} = 0"))
        for name in key:
            value = value[name]
        path = self.table + key
        if path in self.document.lines and path not in self.header_lines:
            dotted = ".".join(path)
            self._fault_twice(statement.line, dotted, dotted, self.document.lines[path])
            return
        if self._place(path, value, statement.line):
            self.document.lines[path] = statement.line

    def _place(self, path: KeyPath, value: Any, line: int) -> bool:
        """Put `value` at `path`; a table that stands there is kept. False, with a fault, if it cannot."""
        table = self.document.data
        for depth, name in enumerate(path[:-1], 1):
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                taken = ".".join(path[:depth])
                where = self.document.lines.get(path[:depth])
                message = f"{taken} is a value (line {where}), so nothing can stand below it"
                fault = Fault(line, ".".join(path), message, "remove one of the two", hides_value=True)
                self.document.faults.append(fault)
                return False
        if path[-1] in table and not (value == {} and isinstance(table[path[-1]], dict)):
            self._fault_twice(line, ".".join(path), ".".join(path), self.document.line_of(path))
            return False
        table.setdefault(path[-1], value)
        return True

    def _fault_twice(self, line: int, shown: str, key: str, first_line: int | None) -> None:
        message = f"{shown} stands twice, on line {first_line} and on line {line}"
        self.document.faults.append(Fault(line, key, message, "keep one of the two"))


def _syntax_fault(error: Exception, statement: _Statement, table: KeyPath) -> Fault:
    """The fault of a statement under the header of `table`."""
    message = str(error)
    position = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    line = statement.line + (int(position.group(1)) - 1 if position and position.group(1) else 0)
    reason = message[: position.start()] if position else message
    assignment = re.match(r"([\w.-]+)[ \t]*=[ \t]*(.*)", statement.text)
    key = ".".join((*table, assignment.group(1))) if assignment else None
    if not isinstance(error, tomllib.TOMLDecodeError):
        message, remedy = "has thousands of digits or brackets, more than can be read", "write a shorter value"
    elif not statement.complete:
        message, remedy = "a bracket or quote that opens here is never closed", "close it"
    elif assignment and "\n" not in statement.text:
        message, remedy = (
            f"{assignment.group(2)} is not TOML",
            "text stands in double quotes, numbers without units",
        )
    else:
        message = f"not TOML: {reason[0].lower()}{reason[1:]}"
        remedy = "TOML writes `key = value` and `[section]`"
    return Fault(line, key, message, remedy, hides_value=True)


def _single_path(tree: Any) -> KeyPath:
    """The names down a chain of one-entry tables: `{a: {b: 0}}` is `(a, b)`."""
    path: list[str] = []
    while isinstance(tree, dict | list) and tree:
        if isinstance(tree, list):
            tree = tree[0]
            continue
        name, tree = next(iter(tree.items()))
        path.append(name)
    return tuple(path)


def _split_at_equals(text: str) -> tuple[str, str]:
    """`key = value` at the first `=` outside quotes; a text without one is all key."""
    quote = ""
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote and text[index - 1] != "\\" else quote
        elif char in "\"'":
            quote = char
        elif char == "=":
            return text[:index], text[index + 1 :]
    return text, ""


def _statements(text: str) -> Iterator[_Statement]:
    """Cut `text` where a newline stands outside brackets and quotes. Blank and comment lines are left out.

    What never closes would swallow the rest of the file: it comes as its first line alone, not complete.
    """
    lines = text.split("\n")
    first = 0
    while first < len(lines):
        stripped = lines[first].strip()
        if not stripped or stripped.startswith("#"):
            first += 1
            continue
        last = _last_line(lines, first)
        if last is None:
            yield _Statement(first + 1, stripped, complete=False)
            first += 1
        else:
            yield _Statement(first + 1, "\n".join(lines[first : last + 1]).strip(), complete=True)
            first = last + 1


_TOKEN = re.compile(r'"""|\'\'\'|"(?:\\.|[^"\\])*"|\'[^\']*\'|#.*|[\[\]{}]')


def _last_line(lines: list[str], first: int) -> int | None:
    """The line on which the statement that starts on `first` ends, or None if it never does."""
    depth, open_quote = 0, ""
    for number in range(first, len(lines)):
        line, position = lines[number], 0
        while True:
            if open_quote:
                position = _after_closing_quote(line, position, open_quote)
                if position < 0:
                    break
                open_quote = ""
            token = _TOKEN.search(line, position)
            if token is None:
                break
            position = token.end()
            if token.group() in ('"""', "'''"):
                open_quote = token.group()
            elif token.group() in ("[", "{"):
                depth += 1
            elif token.group() in ("]", "}"):
                depth -= 1
        if depth <= 0 and not open_quote:
            return number
    return None


def _after_closing_quote(line: str, position: int, quote: str) -> int:
    """Where the text goes on after the closing triple `quote`, or -1 if this line does not close it."""
    while position < len(line):
        if quote == '"""' and line[position] == "\\":
            position += 2
        elif line.startswith(quote, position):
            end = position + 3
            # Up to two more quotes may belong to the text itself: `""""` closes after one of them.
            while end < len(line) and line[end] == quote[0] and end < position + 5:
                end += 1
            return end
        else:
            position += 1
    return -1
