"""The `[training]` section: batches, steps, precision and where the run is kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attnres_train.section import section


@section
class TrainingConfig:
    run_folder: str | None = None
    """Folder of this run, relative to the working directory; None means `runs/<name of the file>`."""
    global_batch_size: int = Field(ge=1)
    """Samples a step, over all ranks."""
    micro_batch_size: int = Field(ge=1)
    """Samples that one rank runs at once."""
    accumulation: int | None = Field(default=None, ge=1)
    """Micro-batches a rank and step; derived when None, checked against the batch sizes when given."""
    sequence_length: int = Field(ge=1)
    """Tokens a sample."""
    steps: int = Field(ge=1)
    """Steps of the whole run."""
    seed: int = Field(default=1, ge=0, le=2**31 - 1)
    """Of the initial weights, the data order and the random streams."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """Dtype of weights and activations; masters, gradients and the depth queries are fp32 in both."""
    tf32: bool = False
    """On GPUs, whether fp32 matrix products are rounded to TF32 (ten bits), which is several times faster."""
    deterministic: bool = False
    """On GPUs, the same bits whenever a run is repeated, with kernels that may be slower; without it attention's
    backward adds up in whatever order it is done. A CPU repeats to the bit either way."""
    recompute: Literal["none", "depth", "layer", "block"] = "none"
    """What backward makes again instead of keeping it: `depth` the mix that enters every branch, `layer` everything
    inside a transformer layer, `block` everything but the depth history itself: block sums, what a stage received,
    and the partial at a stage's end. With `block` all layers of a block stand whole for a moment."""
    eval_interval_steps: int | None = Field(default=None, ge=1)
    """Evaluate every so many steps and at the end; None evaluates only at the end."""
    eval_samples: int = Field(default=64, ge=1)
    """Samples of the fixed validation set, of each where there are several; at most what its corpus holds."""
    stop_after_skipped_steps: int | None = Field(default=3, ge=1)
    """A step whose gradient is not finite changes nothing and is counted; so many in a row end the run (1: the first
    one). None: never."""
    stop_after_steps: int | None = Field(default=None, ge=1)
    """Stop with a checkpoint after this step of the schedule, to go on later; None runs to `steps`."""


def last_step_of(training: TrainingConfig) -> int:
    """The step after which this run stops by itself."""
    return min(training.stop_after_steps or training.steps, training.steps)
