"""One small mistake that somebody could make, and the tests that must notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutant:
    """`old`, which stands once in `file`, becomes `new`."""

    name: str
    """What is wrong with it, in words."""
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Of the quick suite, as pytest takes them; one of them must fail."""
    equivalent: str | None = None
    """Why nothing can notice it, where that is so."""

    def applied_to(self, text: str) -> str:
        """Raises ValueError where `old` is not there once."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.file} has {self.old!r} {count} times, wanted once")
        return text.replace(self.old, self.new)


def mutant(name: str, file: str, old: str, new: str, *tests: str, equivalent: str | None = None) -> Mutant:
    """With paths as they are said: below `attnres_train/`, and of tests below `tests/` without `test_` and `.py`."""
    where = file if file.startswith(("data_tools/", "attnres_train/")) else f"attnres_train/{file}"
    return Mutant(name, where, old, new, tuple(map(_node, tests)), equivalent)


def _node(test: str) -> str:
    """`unit/wire` or `distributed/layouts::name[id]`, as pytest takes it."""
    path, _, name = test.partition("::")
    folder, _, file = path.partition("/")
    return f"tests/{folder}/test_{file}.py" + (f"::{name}" if name else "")
