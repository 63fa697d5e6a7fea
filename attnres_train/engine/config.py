"""The `[engine]` section: who owns gradients and optimizer state."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from pydantic import Field

from attnres_train.section import section


@section
class DeepSpeedSection:
    """`[engine.deepspeed]`. Batch numbers, clipping, optimizer and precision are those of the other sections."""

    zero_stage: int = Field(default=1, ge=0, le=3)
    """What data-parallel ranks divide among them: 1 masters and moments, 2 gradients too, 3 weights too. Pipelines
    go with 1."""
    offload_optimizer: bool = False
    """Masters, moments and the gradients of the step stay in host memory, and the update runs there."""
    reduce_bucket_size: int = Field(default=500_000_000, ge=1)
    """Gradients that are reduced in one message, in elements."""
    param_persistence_threshold: int = Field(default=100_000, ge=0)
    """With `zero_stage = 3`: weights of no more elements than this stay whole on every rank. Norms and the
    parameters of depth readers always do."""
    config: str | None = None
    """Path of a DeepSpeed JSON file with settings beyond these. Its keys are checked against DeepSpeed's own model;
    what it repeats of this configuration is refused."""


@section
class EngineConfig:
    kind: Literal["megatron", "deepspeed"] = "megatron"
    """`megatron`: megatron-core's DistributedDataParallel and DistributedOptimizer. `deepspeed`: DeepSpeed's ZeRO."""
    deepspeed: DeepSpeedSection = field(default_factory=DeepSpeedSection)
