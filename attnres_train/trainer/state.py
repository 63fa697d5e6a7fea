"""What survives a restart beside weights and optimizer state, in one place."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class TrainState:
    """Where a run is. Position is a count of samples; everything else of the data order follows from it."""

    step: int = 0
    samples: int = 0
    tokens: int = 0
    skipped_steps: int = 0

    def after(self, *, samples: int, tokens: int, applied: bool) -> TrainState:
        """The state after one more step over `samples` samples with `tokens` counted tokens."""
        return TrainState(
            self.step + 1, self.samples + samples, self.tokens + tokens, self.skipped_steps + (not applied)
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
