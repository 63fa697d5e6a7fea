"""Bytes at the peak of a step that are neither state nor kept for backward."""

from __future__ import annotations

from attnres_train.config.run_config import RunConfig
from attnres_train.parallel.wire import WirePlan
from attnres_train.plan.units import FP32_BYTES, element_bytes, wire_slice_bytes

_MLP_GRADIENTS = 3
"""Of width F that stand at once in the backward of an MLP, beyond what it frees: of the product, of gate and of up."""


def momentary_bytes(config: RunConfig, padded_vocabulary: int, wire: WirePlan, stage: int) -> int:
    """What stands for a moment in the backward of one micro-batch on `stage`.

    The larger of two moments: in the head, logits in the weights' dtype and in fp32; in an MLP, gradients of its inner
    width and the gradient of its first matrix. With them the gradients of the sources that the stage reads, one buffer
    each (`depth/source.py`), but for those that crossed a hop, which `depth_history` counts.
    """
    training, tensor, element = config.training, config.parallel.tensor, element_bytes(config)
    shards = tensor if config.parallel.sequence else 1
    tokens, width = training.sequence_length * training.micro_batch_size, config.model.hidden_size
    ffn = config.model.ffn_hidden_size // tensor
    mlp = tokens * element * (_MLP_GRADIENTS * ffn + width // shards) + element * 2 * ffn * width
    if not wire.layers_per_stage[stage]:
        mlp = 0
    logits = 0
    if stage == wire.num_stages - 1:
        logits = tokens * padded_vocabulary // tensor * (element + FP32_BYTES)
    return max(mlp, logits) + _source_gradients(wire, stage) * wire_slice_bytes(config)


def _source_gradients(wire: WirePlan, stage: int) -> int:
    """Slices: of sources that the stage made and that no hop brings back."""
    last = stage == wire.num_stages - 1
    returned = () if last else wire.hop_into(stage + 1).returned
    return len(set(wire.made_on(stage)) - set(returned))


def pool_bytes(config: RunConfig, wire: WirePlan, rank: int) -> int:
    """Receive buffers of the messages that are posted ahead on `rank`: one of each direction."""
    into = [wire.hop_into(stage) for stage in wire.stages_of(rank) if stage]
    back = [wire.hop_into(stage + 1) for stage in wire.stages_of(rank) if stage + 1 < wire.num_stages]
    slices = max((hop.slices for hop in into), default=0) + max((hop.slices_back for hop in back), default=0)
    return slices * wire_slice_bytes(config)
