"""Where a run is, and what its last step did: the values that trainer, checkpoints and metrics share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class LossSum(NamedTuple):
    """Losses summed over the tokens that count, in nats, and the number of these tokens."""

    loss: float = 0.0
    tokens: int = 0

    @property
    def mean(self) -> float:
        """Nats a token; NaN where no token counts."""
        return self.loss / self.tokens if self.tokens else math.nan

    def plus(self, other: LossSum) -> LossSum:
        return LossSum(self.loss + other.loss, self.tokens + other.tokens)


def added(one: Mapping[str, LossSum], other: Mapping[str, LossSum]) -> dict[str, LossSum]:
    """Sums by name; a name that one side lacks counts as nothing there."""
    return {name: one.get(name, LossSum()).plus(other.get(name, LossSum())) for name in {**one, **other}}


@dataclass(frozen=True)
class TrainState:
    """Where a run is. Position is a count of samples; everything else of the data order follows from it."""

    step: int = 0
    samples: int = 0
    tokens: int = 0
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    """How many of the last steps were skipped; 0 after a step that was applied."""
    losses: Mapping[str, LossSum] = field(default_factory=dict)
    """What the next record will count besides its own step: losses of the steps since the last one, by `train` and
    `train/SOURCE`. In the state, so that a run that stops between two records goes on as if it had not."""

    def after(self, *, samples: int, tokens: int, applied: bool, losses: Mapping[str, LossSum]) -> TrainState:
        """The state after one more step over `samples` samples with `tokens` counted tokens.

        `losses` are those that no record has yet.
        """
        return TrainState(
            step=self.step + 1,
            samples=self.samples + samples,
            tokens=self.tokens + tokens,
            skipped_steps=self.skipped_steps + (not applied),
            skipped_in_a_row=0 if applied else self.skipped_in_a_row + 1,
            losses=losses,
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class StepReport:
    """What one step did, the same on every rank."""

    losses: Mapping[str, LossSum]
    """Of this step and those before it that no record has yet: `train`, and `train/SOURCE` for each of a blend."""
    grad_norm: float
    learning_rate: float
    applied: bool
    tokens: int
    forward_bytes: int
    backward_bytes: int
    votes: Mapping[str, int]
    """How many ranks voted so, by the names that the step was given."""
    seconds: Mapping[str, float]
    """By phase, of this rank: `data` (waiting for its samples, which are read while the step before runs), `forward`,
    `backward`, `waiting` (for the neighbours in the pipeline), `reduction` (of gradients), `optimizer`."""
    not_finite: tuple[str, ...] = ()
    """Of a skipped step: which ranks had a loss that is not finite, on which samples."""
    kept_bytes: int = 0
    """The most of the depth history that this rank kept at once."""
