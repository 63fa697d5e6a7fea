"""A line of a `.jsonl` file to its object, or why it is none."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal
from typing import Any

from data_tools.bad_records import Unreadable

STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
STRUCTURE = re.compile(rb"(?:[\[\]{}:,\s\d.eE+-]|true|false|null)*")
"""All that JSON has outside of strings."""
ONE_A_LINE = "one object a line is wanted, as `jq -c .` writes it, or `jq -c '.[]'` the elements of an array"


class _Ambiguous(dict[str, Any]):
    """An object that has the keys `twice` more than once: readers keep one value and lose the other without a word."""

    twice: frozenset[str]


def json_object(content: str, asked: Collection[str], is_part: bool) -> dict[str, Any]:
    """The object of a line. Only what is `asked` for is judged, so other keys may come twice.

    `is_part` says that the line goes on with a value that began in a line before. Raises Unreadable.
    """
    if is_part:
        raise Unreadable("over several lines", f"is part of a value that began in a line before: {ONE_A_LINE}")
    try:
        record = _parsed(content)
    except json.JSONDecodeError as error:
        if goes_on(content.encode(), after=b",[:{"):
            raise Unreadable("over several lines", f"goes on in the next line: {ONE_A_LINE}") from None
        what = error.msg.removesuffix(" at")
        raise Unreadable("not JSON", f"not JSON: {what} at column {error.colno}") from None
    except RecursionError:
        raise Unreadable("not JSON", "not usable JSON: nested too deeply") from None
    if not isinstance(record, dict):
        hint = f": {ONE_A_LINE}" if isinstance(record, list) else ""
        raise Unreadable("not an object", f"not a JSON object but {json_kind(record)}{hint}")
    if isinstance(record, _Ambiguous) and (again := record.twice.intersection(asked)):
        raise Unreadable("key twice", f"has the key {min(again)!r} more than once")
    return record


def _parsed(content: str) -> Any:
    try:
        return json.JSONDecoder(object_pairs_hook=_object).decode(content)
    except json.JSONDecodeError:
        raise
    except ValueError:
        # Python makes no integers of thousands of digits; such a number may stand where nobody asked for it.
        return json.JSONDecoder(object_pairs_hook=_object, parse_int=Decimal).decode(content)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) == len(pairs):
        return record
    ambiguous = _Ambiguous(record)
    names = Counter(name for name, _ in pairs)
    ambiguous.twice = frozenset(name for name, count in names.items() if count > 1)
    return ambiguous


def goes_on(line: bytes, after: bytes = b",[:") -> bool:
    """Whether `line` is made of JSON and ends where a value must follow.

    What the next line then begins with is no record but a part of one: an element of an array, a value in an object.
    Records that are whole end with a brace. (After an opening brace comes a key, which no record begins with.)
    """
    line = line.rstrip()
    return line[-1:] != b"" and line[-1:] in after and STRUCTURE.fullmatch(STRING.sub(b"0", line)) is not None


def lookalike(key: str, fields: Iterable[str]) -> str:
    """In words, the one of `fields` that is `key` but for capitals, spaces, or how its letters are composed."""

    def folded(name: str) -> str:
        return unicodedata.normalize("NFKC", name).casefold().strip()

    found = next((name for name in fields if folded(name) == folded(key)), None)
    return "" if found is None else f"; is {found!a} meant?"


def json_kind(value: object) -> str:
    """What `value` is, in the words of JSON."""
    kinds = {type(None): "null", bool: "true or false", dict: "an object", list: "an array", str: "a string"}
    return next((name for kind, name in kinds.items() if isinstance(value, kind)), "a number")
