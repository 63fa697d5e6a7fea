"""JSON that every reader takes. Its standard (RFC 8259) has no word for NaN and the infinities, and Python writes them
bare, which only Python reads: here such a float is a text, `"NaN"`, `"Infinity"` or `"-Infinity"`, under its own key.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The texts that stand for numbers: those of protobuf's JSON, which Python's `float` reads as well."""
STRING_OR_WORD = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|NaN|-?Infinity')


def dumps(
    value: Any,
    *,
    indent: int | None = None,
    ensure_ascii: bool = True,
    default: Callable[[Any], Any] | None = None,
) -> str:
    """`value` as strict JSON; the options are those of `json.dumps`."""

    def strictly(value: Any) -> str:
        return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, default=default, allow_nan=False)

    try:
        return strictly(value)
    except ValueError:  # rarely: most values are finite, and need no walk
        return strictly(_in_words(value))


def loads(text: bytes | str) -> Any:
    """What `dumps` was given: texts that stand for numbers are numbers again. Reads bare NaN as well, as older files
    have it.

    Raises ValueError for what is no JSON or no UTF-8, RecursionError for brackets without end.
    """
    value = json.loads(text)
    marks = (b'NaN"', b'Infinity"') if isinstance(text, bytes) else ('NaN"', 'Infinity"')
    return _in_numbers(value) if any(mark in text for mark in marks) else value  # type: ignore[operator]


def as_strict(text: bytes) -> bytes:
    """One JSON value as it is, but for bare NaN and infinities, which become texts."""
    if b"NaN" not in text and b"Infinity" not in text:
        return text
    return STRING_OR_WORD.sub(lambda found: found[0] if found[0].startswith(b'"') else b'"' + found[0] + b'"', text)


def as_text(value: object) -> str:
    """For `default`: what JSON has no kind for, such as dates and bytes."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _in_words(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _in_words(inner) for key, inner in value.items()}
    return [_in_words(inner) for inner in value] if isinstance(value, list | tuple) else value


def _in_numbers(value: Any) -> Any:
    if isinstance(value, str):
        return WORDS.get(value, value)
    if isinstance(value, dict):
        return {key: _in_numbers(inner) for key, inner in value.items()}
    return [_in_numbers(inner) for inner in value] if isinstance(value, list) else value
