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
