"""The `[observe]` section: what a run reports."""

from __future__ import annotations

from pydantic import Field

from attnres_train.section import section


@section
class ObserveConfig:
    log_interval_steps: int = Field(default=1, ge=1)
    """Print and record metrics every so many steps; `loss/train` is the mean over the tokens of all of them."""
    depth_interval: int | None = Field(default=100, ge=1)
    """Look at the depth every so many steps: where readers look, how large what flows is (`depth/...`, `depth.jsonl`,
    a map a look). None: never."""
    tensorboard: bool = True
    """Write TensorBoard event files beside `metrics.jsonl`."""
    sample_log: bool = False
    """Write the ids of each step's samples to `samples.jsonl`."""
    wandb_project: str | None = None
    """Also send curves to this project of Weights & Biases, with `pip install wandb`."""
    profile_steps: tuple[int, int] | None = None
    """First and last step of a trace by torch's profiler, in `profile/`; on a GPU with a snapshot of memory."""
    profile_ranks: tuple[int, ...] = (0,)
    """Ranks that are traced."""

    def records(self, step: int, *, applied: bool) -> bool:
        """Whether `step` is recorded wherever a run stops: when it is due, and when it was skipped."""
        return step % self.log_interval_steps == 0 or not applied
