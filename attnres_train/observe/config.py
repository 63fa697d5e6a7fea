"""The `[observe]` section: what a run reports."""

from __future__ import annotations

from pydantic import Field

from attnres_train.section import section


@section
class ObserveConfig:
    log_interval_steps: int = Field(default=1, ge=1)
    """Print and record metrics every so many steps."""
    tensorboard: bool = True
    """Write TensorBoard event files beside `metrics.jsonl`."""
    sample_log: bool = False
    """Write the ids of each step's samples to `samples.jsonl`."""
