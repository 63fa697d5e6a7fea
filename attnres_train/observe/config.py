"""The `[observe]` section: what a run reports."""

from __future__ import annotations

from pydantic import Field

from attnres_train.section import section


@section
class ObserveConfig:
    log_interval_steps: int = Field(default=1, ge=1)
    """Print and record metrics every so many steps."""
    depth_interval: int | None = Field(default=100, ge=1)
    """Look at the depth every so many steps: where readers look, how large what flows is (`depth/...`, `depth.jsonl`,
    a map a look). None: never."""
    tensorboard: bool = True
    """Write TensorBoard event files beside `metrics.jsonl`."""
    sample_log: bool = False
    """Write the ids of each step's samples to `samples.jsonl`."""
