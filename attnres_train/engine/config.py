"""The `[engine]` section: who owns gradients and optimizer state."""

from __future__ import annotations

from typing import Literal

from attnres_train.section import section


@section
class EngineConfig:
    kind: Literal["megatron"] = "megatron"
    """`megatron`: megatron-core's DistributedDataParallel and DistributedOptimizer."""
