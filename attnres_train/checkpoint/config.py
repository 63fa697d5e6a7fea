"""The `[checkpoint]` section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attnres_train.section import section


@section
class CheckpointConfig:
    interval_steps: int | None = Field(default=None, ge=1)
    """Save every so many steps and at the end; None saves only at the end and on a signal."""
    asynchronous: bool = True
    """Training goes on while files are written; a save that is due meanwhile waits for the one before."""
    keep: int | None = Field(default=2, ge=1)
    """Newest checkpoints to keep; None keeps all. One is deleted only after a newer one has been read back."""
    resume: str = "auto"
    """`auto`: the newest whole checkpoint of the run folder, or step 0 if there is none at all. `must`: refuse if
    there is none. `never`: step 0, refused where checkpoints are. Anything else: the path of a checkpoint; if it is
    another run's, the run begins from it and, interrupted, goes on from its own newest."""
    load: Literal["all", "weights"] = "all"
    """What is taken of the checkpoint that `resume` names by its path: `all` goes on from it exactly; `weights` begins
    at step 0 with its weights, all else being new: moments, schedule, order of the data, random state and counts.
    Interrupted, such a run goes on from its own newest checkpoint exactly."""
    allow: tuple[Literal["missing", "extra", "moments", "settings", "data", "tokenizer", "average"], ...] = ()
    """Differences that a resume accepts, each printed: `missing` tensors start anew, `extra` ones are left out,
    `moments` that are not there start at zero, an `average` that is not there starts as the weights, other `settings`
    of the model, other training `data`, another `tokenizer`. None of them by default."""
