"""Known keys from unknown ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnres_train.config.keys import Key, section_names
from attnres_train.config.names import nearest_key, nearest_word, unknown_key
from attnres_train.errors import Problem


@dataclass
class Sifted:
    """`values` by known dotted key; a problem for everything else; `meant`, the keys that were likely meant.

    A required key that is among `meant` is misspelt rather than missing.
    """

    values: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    meant: set[str] = field(default_factory=set)


def sift(data: Mapping[str, Any], keys: Mapping[str, Key], where: Callable[[str], str]) -> Sifted:
    """Take nested `data` apart; `where` gives the place of a dotted name, `FILE:LINE`."""
    sifted = Sifted()
    _walk(data, "", "", keys, where, sifted)
    return sifted


def _walk(
    data: Mapping[str, Any],
    prefix: str,
    meant_prefix: str,
    keys: Mapping[str, Key],
    where: Callable[[str], str],
    sifted: Sifted,
) -> None:
    """Sift the table at `prefix`, which stands for the section `meant_prefix`; they differ where misspelt."""
    sections = section_names(keys)
    for name, value in data.items():
        dotted, meant = prefix + name, meant_prefix + name
        if meant in keys:
            _keep(dotted, meant, value, sifted)
        elif meant in sections:
            if isinstance(value, dict):
                _walk(value, f"{dotted}.", f"{meant}.", keys, where, sifted)
            else:
                message = f"{value!r} is not a section ({where(dotted)})"
                sifted.problems.append(Problem(dotted, message, f"write its keys under [{meant}]"))
        elif isinstance(value, dict):
            _unknown_table(dotted, value, sections, keys, where, sifted)
        else:
            _unknown(dotted, value, keys, where, sifted)


def _keep(dotted: str, meant: str, value: Any, sifted: Sifted) -> None:
    """Take a known key; of a misspelt section only note that it was meant."""
    if dotted == meant:
        sifted.values[dotted] = value
    else:
        sifted.meant.add(meant)


def _unknown_table(
    dotted: str,
    table: Mapping[str, Any],
    sections: list[str],
    keys: Mapping[str, Key],
    where: Callable[[str], str],
    sifted: Sifted,
) -> None:
    section = nearest_word(dotted, sections)
    remedy = f"did you mean [{section}]?" if section else "the sections are " + ", ".join(f"[{s}]" for s in sections)
    sifted.problems.append(Problem(dotted, f"unknown section ({where(dotted)})", remedy))
    if section:
        _walk(table, f"{dotted}.", f"{section}.", keys, where, sifted)
    else:
        for name, value in table.items():
            if nearest_key(f"{dotted}.{name}", keys):
                _unknown(f"{dotted}.{name}", value, keys, where, sifted)


def _unknown(dotted: str, value: Any, keys: Mapping[str, Key], where: Callable[[str], str], sifted: Sifted) -> None:
    """An unknown key, and where it is a table those of its keys that are near a known one."""
    sifted.problems.append(unknown_key(dotted, where(dotted), keys))
    nearest = nearest_key(dotted, keys)
    if nearest:
        sifted.meant.add(nearest)
    if isinstance(value, dict):
        for name, inner in value.items():
            if nearest_key(f"{dotted}.{name}", keys):
                _unknown(f"{dotted}.{name}", inner, keys, where, sifted)
