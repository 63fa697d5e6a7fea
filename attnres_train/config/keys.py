"""Every key of the configuration and what it takes, read off the declared sections."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from attnres_train.config.run_config import RunConfig

NONE_TEXT = "none"
"""How a file or a flag says None, for every key that may be None; TOML has no null."""


@dataclass(frozen=True)
class Key:
    """One setting. `dotted` is `section.key`; `default` is None for required keys too."""

    dotted: str
    required: bool
    default: Any
    may_be_none: bool
    takes: str
    """What may be written, in words: `an integer of at least 1`."""
    takes_text: bool
    """Whether any text is a value: then what a command line says is taken as it is written."""
    choices: tuple[str, ...]
    """The words it takes, or a list of them, where it takes nothing else."""
    is_list: bool
    help: str

    @property
    def section(self) -> str:
        return self.dotted.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.dotted.rpartition(".")[2]


@cache
def all_keys() -> Mapping[str, Key]:
    """Dotted name -> key, in the order of declaration."""
    return {key.dotted: key for key in _keys_of(RunConfig, "")}


def section_names(keys: Mapping[str, Key]) -> list[str]:
    """Dotted names of the sections, in order."""
    return list(dict.fromkeys(key.section for key in keys.values()))


def flattened(tables: Mapping[str, Any], known: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Tables of TOML as values by dotted key; the value of a `known` key may be a table itself."""
    values: dict[str, Any] = {}
    for name, value in tables.items():
        dotted = prefix + name
        if isinstance(value, Mapping) and dotted not in known:
            values |= flattened(value, known, f"{dotted}.")
        else:
            values[dotted] = value
    return values


def _keys_of(cls: Any, prefix: str) -> list[Key]:
    keys = []
    for name, field in cls.__pydantic_fields__.items():
        nested = dataclasses.is_dataclass(field.annotation)
        keys += _keys_of(field.annotation, f"{prefix}{name}.") if nested else [_key(prefix + name, field)]
    return keys


def _key(dotted: str, field: FieldInfo) -> Key:
    options = _options(field.annotation)
    wanted = [option for option in options if option is not type(None)]
    items = [item for option in wanted if get_origin(option) is tuple for item in get_args(option)]
    literals = [option for option in (*wanted, *items) if get_origin(option) is Literal]
    may_be_none = len(wanted) < len(options)
    required = field.is_required()
    return Key(
        dotted=dotted,
        required=required,
        default=None if required else field.default,
        may_be_none=may_be_none,
        takes=", or ".join(_words(option, field) for option in wanted) + (f', or "{NONE_TEXT}"' if may_be_none else ""),
        takes_text=str in wanted,
        is_list=bool(items),
        choices=tuple(word for literal in literals for word in get_args(literal)),
        help=" ".join((field.description or "").split()),
    )


def _options(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _words(annotation: Any, field: FieldInfo) -> str:
    """What one alternative of a field takes, its bounds included."""
    origin = get_origin(annotation)
    if origin is Literal:
        quoted = [f'"{word}"' for word in get_args(annotation)]
        return quoted[0] if len(quoted) == 1 else "one of " + ", ".join(quoted)
    if origin is tuple:
        items = get_args(annotation)
        if get_origin(items[0]) is Literal:
            return "a list of " + ", ".join(f'"{word}"' for word in get_args(items[0]))
        return f"a list of {'' if Ellipsis in items else f'{len(items)} '}integers"
    if origin is dict:
        of_numbers = get_args(annotation)[1] is float
        return 'a table {"prefix" = weight}' if of_numbers else "a table {name = prefix or such a table}"
    word: str = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}[annotation]
    return word + (_bounds(field) if annotation in (int, float) else "")


def _bounds(field: FieldInfo) -> str:
    phrases = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    bounds = ((bound, name) for bound in field.metadata for name in phrases if hasattr(bound, name))
    return " and".join(f" {phrases[name]} {getattr(bound, name)}" for bound, name in bounds)
