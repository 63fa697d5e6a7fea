"""Steps whose gradient is not finite: told, counted, and at some point the end."""

from __future__ import annotations

import logging

from attnres_train.observe.console import CONSOLE
from attnres_train.progress import StepReport, TrainState

log = logging.getLogger(CONSOLE)


class SkippedSteps:
    """Says of every skipped step why, and ends a run in which `limit` follow each other."""

    def __init__(self, limit: int | None):
        self.limit = limit
        self._first = ""

    def look_at(self, state: TrainState, report: StepReport) -> str | None:
        """Why the run must end, at the limit; the same on every rank."""
        if report.applied:
            return None
        where = "; ".join(report.not_finite) or "every loss is finite, their gradient is not"
        this = f"step {state.step}: gradient norm {report.grad_norm}, skipped; {where}"
        log.warning(this)
        if state.skipped_in_a_row == 1 or not self._first:
            self._first = this
        if self.limit is None or state.skipped_in_a_row < self.limit:
            return None
        return (
            f"{state.skipped_in_a_row} steps in a row had a gradient that is not finite "
            f"(training.stop_after_skipped_steps = {self.limit}). The first one: {self._first}. They "
            "changed nothing: what made them so is the data they name, or came before. Go on from a checkpoint well "
            "before (checkpoint.resume), with a lower optimizer.learning_rate or without these samples"
        )
