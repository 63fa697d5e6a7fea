"""The mutants of the rooms, read from their files."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@dataclass(frozen=True)
class Mutant:
    """One mistake: `old`, found once in `file`, replaced by `new`."""

    room: str
    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...] = ()
    """Nodes of pytest, of which at least one must fail."""
    equivalent: str | None = None
    """Why nothing observable changes; such a mutant is listed and not run."""

    def applied(self, text: str) -> str | None:
        """`text` of the file with the mistake in it; None where `old` is not there exactly once."""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 and self.old != self.new else None


def mutants() -> list[Mutant]:
    """Of all rooms. Raises TypeError for a table that lacks a key."""
    return [mutant for path in sorted(HERE.glob("*.toml")) for mutant in _of_room(path)]


def _of_room(path: Path) -> Iterator[Mutant]:
    for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
        yield Mutant(room=path.stem, name=name, **{**table, "tests": tuple(table.get("tests", ()))})


def faults(mutant: Mutant, root: Path = ROOT) -> list[str]:
    """Why a mutant cannot be run: its text has moved, or its tests have, or they are not quick."""
    source = root / mutant.file
    told = []
    if not source.is_file():
        told.append(f"there is no {mutant.file}")
    elif mutant.applied(text := source.read_text(encoding="utf-8")) is None:
        told.append(f"its old text is {text.count(mutant.old)} times in {mutant.file}")
    if bool(mutant.tests) == (mutant.equivalent is not None):
        told.append("it needs either tests or a reason why it is equivalent")
    return told + [fault for node in mutant.tests if (fault := _fault_of_node(node, root)) is not None]


def _fault_of_node(node: str, root: Path) -> str | None:
    name, _, rest = node.partition("::")
    if not (root / name).is_file():
        return f"there is no {name}"
    function = rest.partition("[")[0]
    if not function:
        return None
    for found in ast.parse((root / name).read_text(encoding="utf-8")).body:
        if isinstance(found, ast.FunctionDef) and found.name == function:
            slow = any(ast.unparse(decorator) == "pytest.mark.slow" for decorator in found.decorator_list)
            return f"{node} is slow" if slow else None
    return f"{name} has no {function}"
