"""What a section of the page finds. Plain values, which cross processes as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["passed", "failed", "measured", "not run"]


@dataclass(frozen=True)
class Section:
    title: str
    verdict: Verdict
    """`measured`: numbers that no bound is known for."""
    said: str
    """In a sentence, what was held against what."""
    rows: Sequence[Mapping[str, Any]] = ()
    seconds: float = 0.0
    notes: Sequence[str] = field(default_factory=tuple)


def judged(title: str, said: str, rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> Section:
    """Passed where every row with `ok` has it true."""
    wrong = sum(not row.get("ok", True) for row in rows)
    return Section(title, "failed" if wrong or not rows else "passed", said, rows, notes=notes)
