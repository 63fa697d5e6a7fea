"""Known keys from unknown ones, and the nearest known name of a misspelt or foreign one."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from attnres_train.config.keys import Key, section_names
from attnres_train.errors import Problem

_LIKENESS = 0.7
_SAME_SECTION_BONUS = 0.15


@cache
def foreign_names() -> Mapping[str, str]:
    """What other codebases call our keys, by key."""
    return tomllib.loads(Path(__file__).with_name("foreign_names.toml").read_text(encoding="utf-8"))


def nearest_key(dotted: str, known: Iterable[str]) -> str | None:
    """The known dotted key that `dotted` most likely means, or None where nothing is near.

    Compares the last name with every known last name and with other codebases' names; a key of the same
    section wins over an equally near one elsewhere.
    """
    section, _, name = dotted.rpartition(".")
    candidates = [(key.rpartition(".")[2], key) for key in known]
    candidates += [(foreign, key) for key, names in foreign_names().items() for foreign in names.split()]
    best, best_score = None, _LIKENESS
    for candidate, key in candidates:
        score = _likeness(name, candidate)
        if score >= _LIKENESS:
            score += _SAME_SECTION_BONUS * (key.rpartition(".")[0] == section)
        if score > best_score or (best is None and score == best_score):
            best, best_score = key, score
    return best


def unknown_key(dotted: str, where: str, known: Collection[str], *, flag: bool = False) -> Problem:
    """The problem of a key, or of the flag that names it, which no section declares."""
    shown = f"--{dotted}" if flag else dotted
    nearest = nearest_key(dotted, known)
    if nearest is None:
        remedy = "`configs/reference.toml` lists every key"
    else:
        remedy = f"did you mean {'--' if flag else ''}{nearest}?"
    return Problem(shown, f"unknown {'flag' if flag else 'key'} ({where})", remedy)


def nearest_word(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` most likely means, or None."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), None)


def _likeness(one: str, other: str) -> float:
    one, other = (name.lower().replace("-", "_") for name in (one, other))
    return difflib.SequenceMatcher(None, one, other).ratio()


@dataclass
class Sifted:
    """`values` by known dotted key; a problem for everything else; `meant`, the keys that were likely meant.

    A required key that is among `meant` is misspelt rather than missing.
    """

    keys: Mapping[str, Key]
    where: Callable[[str], str]
    values: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    meant: set[str] = field(default_factory=set)

    def take(self, table: Mapping[str, Any], prefix: str = "", meant_prefix: str = "") -> None:
        """Sift the table at `prefix`, which stands for the section `meant_prefix`; they differ where misspelt."""
        sections = section_names(self.keys)
        for name, value in table.items():
            dotted, meant = prefix + name, meant_prefix + name
            if meant in self.keys and dotted == meant:
                self.values[dotted] = value
            elif meant in self.keys:
                self.meant.add(meant)
            elif meant in sections and isinstance(value, dict):
                self.take(value, f"{dotted}.", f"{meant}.")
            elif meant in sections:
                message = f"{value!r} is not a section ({self.where(dotted)})"
                self.problems.append(Problem(dotted, message, f"write its keys under [{meant}]"))
            elif isinstance(value, dict):
                self._unknown_table(dotted, value, sections)
            else:
                self._unknown(dotted)

    def _unknown_table(self, dotted: str, table: Mapping[str, Any], sections: list[str]) -> None:
        section = nearest_word(dotted, sections)
        listed = "the sections are " + ", ".join(f"[{name}]" for name in sections)
        remedy = f"did you mean [{section}]?" if section else listed
        self.problems.append(Problem(dotted, f"unknown section ({self.where(dotted)})", remedy))
        if section:
            self.take(table, f"{dotted}.", f"{section}.")
        else:
            for name in table:
                if nearest_key(f"{dotted}.{name}", self.keys):
                    self._unknown(f"{dotted}.{name}")

    def _unknown(self, dotted: str) -> None:
        self.problems.append(unknown_key(dotted, self.where(dotted), self.keys))
        if nearest := nearest_key(dotted, self.keys):
            self.meant.add(nearest)


def sift(data: Mapping[str, Any], keys: Mapping[str, Key], where: Callable[[str], str]) -> Sifted:
    """Take nested `data` apart; `where` gives the place of a dotted name, `FILE:LINE`."""
    sifted = Sifted(keys, where)
    sifted.take(data)
    return sifted
