"""What a run takes from each of its corpora, in words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SourceSummary:
    """One source of a run: what it holds, and what the run, or the rest of it, takes from it.

    `samples`, `tokens` and `documents` are None for a source of weight 0, which is not opened.
    `known_tokenizer` is False for a pair without a manifest: only its ids can be checked.
    """

    prefix: str
    weight: float
    """Its share of the draws, as asked for."""
    samples: int | None
    tokens: int | None
    documents: int | None
    known_tokenizer: bool
    draws: int
    epochs_before: float
    """How far through the source these draws begin; 0 at the start of a run."""
    epochs: float
    """How far through it they end."""

    def __str__(self) -> str:
        """One line for the start of a run."""
        if self.samples is None:
            return f"{self.prefix}: weight 0, unused"
        unknown = "" if self.known_tokenizer else "; no manifest: made with which tokenizer is not known"
        still = " more" if self.epochs_before else ""
        return (
            f"{self.prefix}: {self.tokens:,} tokens, {self.samples:,} samples; "
            f"draws {self.draws:,}{still}, epochs {self._epochs()}{unknown}"
        )

    def _epochs(self) -> str:
        return f"{self.epochs_before:.2f} to {self.epochs:.2f}" if self.epochs_before else f"{self.epochs:.2f}"


@dataclass(frozen=True)
class Shortfall:
    """A validation source that holds less than its share of the samples asked for."""

    prefix: str
    asked: int
    samples: int

    def __str__(self) -> str:
        return f"training.eval_samples asks {self.prefix} for {self.asked:,} samples; it holds {self.samples:,}"
