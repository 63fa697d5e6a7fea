"""Sizes that every part of a plan counts in."""

from __future__ import annotations

from attnres_train.config.run_config import RunConfig
from attnres_train.parallel.wire import slice_bytes

GIB = 2**30
FP32_BYTES = 4


def element_bytes(config: RunConfig) -> int:
    """Of a weight or an activation."""
    return {"fp32": 4, "bf16": 2}[config.training.precision]


def wire_slice_bytes(config: RunConfig) -> int:
    """Bytes of one slice of the depth history, of one micro-batch on one rank."""
    training, parallel = config.training, config.parallel
    shards = parallel.tensor if parallel.sequence else 1
    width, element = config.model.hidden_size, element_bytes(config)
    return slice_bytes(training.sequence_length, training.micro_batch_size, width, element, shards)
