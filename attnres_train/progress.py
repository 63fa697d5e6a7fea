"""Where a run is, and what its last step did: the values that trainer, checkpoints and metrics share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class TrainState:
    """Where a run is. Position is a count of samples; everything else of the data order follows from it."""

    step: int = 0
    samples: int = 0
    tokens: int = 0
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    """How many of the last steps were skipped; 0 after a step that was applied."""

    def after(self, *, samples: int, tokens: int, applied: bool) -> TrainState:
        """The state after one more step over `samples` samples with `tokens` counted tokens."""
        skipped = 0 if applied else 1
        in_a_row = 0 if applied else self.skipped_in_a_row + 1
        return TrainState(
            self.step + 1, self.samples + samples, self.tokens + tokens, self.skipped_steps + skipped, in_a_row
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class StepReport:
    """What one step did, the same on every rank. Losses are means over counted tokens, in nats."""

    loss: float
    grad_norm: float
    learning_rate: float
    applied: bool
    tokens: int
    forward_bytes: int
    backward_bytes: int
    stop_requested: bool
    seconds: Mapping[str, float]
    """By phase, of this rank: `data` (waiting for its samples, which are read while the step before runs), `forward`,
    `backward`, `waiting` (for the neighbours in the pipeline), `reduction` (of gradients), `optimizer`."""
    not_finite: tuple[str, ...] = ()
    """Of a skipped step: which ranks had a loss that is not finite, on which samples."""
    writing_ranks: int = 0
    """Ranks that still write a checkpoint."""
    failed_ranks: int = 0
    """Ranks on which writing one has failed."""
    kept_bytes: int = 0
    """The most of the depth history that this rank kept at once."""
