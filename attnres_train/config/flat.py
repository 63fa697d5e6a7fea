"""Tables of TOML as values by dotted key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def flattened(tables: Mapping[str, Any], known: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key; the value of a `known` key may be a table itself."""
    values: dict[str, Any] = {}
    for name, value in tables.items():
        dotted = prefix + name
        if isinstance(value, Mapping) and dotted not in known:
            values |= flattened(value, known, f"{dotted}.")
        else:
            values[dotted] = value
    return values
