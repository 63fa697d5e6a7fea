"""The `[checkpoint]` section."""

from __future__ import annotations

from pydantic import Field

from attnres_train.section import section


@section
class CheckpointConfig:
    interval_steps: int | None = Field(default=None, ge=1)
    """Save every so many steps and at the end; None saves only at the end and on a signal."""
    keep: int | None = Field(default=2, ge=1)
    """Newest checkpoints to keep; None keeps all."""
    resume: str = "auto"
    """`auto`: the newest checkpoint of the run folder, or step 0 if there is none. `must`: refuse if there is
    none. `never`: step 0, refused where checkpoints are. Anything else: the path of a checkpoint."""
