"""The `[optimizer]` and `[schedule]` sections."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attnres_train.section import section


@section
class OptimizerConfig:
    learning_rate: float = Field(default=3e-4, gt=0, le=1e30)
    """Peak learning rate, reached at the end of the warm-up."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled decay, of the parameters whose modules say so: embedding, projections, key and query projections of
    the depth. Gains, biases, gates, depth queries, coefficients and static logits never decay. `attnres inspect` of a
    checkpoint lists both."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the mean of gradients."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW's decay of the mean of squared gradients."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second mean in AdamW's quotient."""
    clip_grad_norm: float | None = Field(default=1.0, gt=0)
    """Clip the global gradient norm to this; None turns clipping off."""
    average_decay: float | None = Field(default=None, gt=0, lt=1)
    """Keep an exponential mean of the fp32 weights, from the first ones on: after update n of the run it becomes
    d mean + (1 - d) weight, with d = min(average_decay, (1 + n) / (10 + n)), so that early weights are soon forgotten.
    `attnres export --average` writes it. 4 bytes a parameter, divided like the moments. None keeps none."""


@section
class ScheduleConfig:
    kind: Literal["cosine", "wsd", "constant"] = "cosine"
    """Shape after the warm-up: cosine decay; warm-up, stable, decay; or constant. Rates count steps, not samples:
    another batch size leaves them at their steps."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up."""
    decay_steps: int | None = Field(default=None, ge=1)
    """For `wsd`: steps of the final decay. For `cosine`: steps from the first to the end of the decay;
    None decays until `training.steps`."""
    min_learning_rate: float = Field(default=0.0, ge=0)
    """Learning rate of the last step of the decay. With 0 that step is the last one above 0: no step is wasted."""
