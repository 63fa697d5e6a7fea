"""How long a run still takes, evaluations and checkpoints included, by its pace so far."""

from __future__ import annotations


class Remaining:
    """The pace of one process, from its first logged step on: what comes before warms up."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def seconds(self, now: float, step: int, steps: int, step_seconds: float) -> float:
        """From `now`, on a clock that only goes forward, when `step` of `steps` is logged.

        `step_seconds`: what a step took, to go by at the first one.
        """
        if self._first is None:
            self._first = step, now
        first_step, began = self._first
        pace = (now - began) / (step - first_step) if step > first_step else step_seconds
        return (steps - step) * pace
