"""How a section of the TOML file is declared: a frozen, strictly checked dataclass that lives with its owner."""

from __future__ import annotations

from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def section(cls: type[T]) -> type[T]:
    """Class decorator: a frozen keyword-only pydantic dataclass that refuses unknown keys and loose types.

    Strict, so that `"64"` is no integer and `1.5` no count; docstrings below the fields become their help.
    """
    checked = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)
    return dataclass(frozen=True, kw_only=True, config=checked)(cls)  # type: ignore[return-value]


def changed(values: Any) -> dict[str, Any]:
    """What differs from the defaults in a section that has one for every key, by name."""
    defaults = vars(type(values)())
    return {name: value for name, value in vars(values).items() if value != defaults[name]}
