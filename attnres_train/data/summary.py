"""What a run takes from each of its corpora, in words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SourceSummary:
    """One source of a run: what it holds, and what the run, or the rest of it, takes from it.

    `samples` and `tokens` are None for a source of weight 0, which is not opened.
    """

    prefix: str
    weight: float
    """Its share of the draws, as asked for."""
    samples: int | None
    tokens: int | None
    note: str
    """What there is to say of it besides."""
    before: int
    """Draws from it before these; 0 at the start of a run."""
    draws: int

    @property
    def epochs(self) -> float:
        """How far through it these draws end."""
        return (self.before + self.draws) / self.samples if self.samples else 0.0

    def __str__(self) -> str:
        """One line for the start of a run."""
        if self.samples is None:
            return f"{self.prefix}: weight 0, unused"
        still, begin = (" more", f"{self.before / self.samples:.2f} to ") if self.before else ("", "")
        drawn = f"draws {self.draws:,}{still}, epochs {begin}{self.epochs:.2f}"
        return f"{self.prefix}: {self.tokens:,} tokens, {self.samples:,} samples; {drawn}{self.note}"
