"""Values for JSON, which has no word for infinities and for what is no number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def without_infinities(value: Any) -> Any:
    """`value` with None for every float that is not finite, in mappings and sequences too."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: without_infinities(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(inner) for inner in value]
    return value


def not_finite(values: Mapping[str, Any]) -> list[str]:
    """Names of those that `without_infinities` would take out."""
    return [name for name, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
