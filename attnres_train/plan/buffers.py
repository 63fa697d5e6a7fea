"""Bytes at the peak of a step that are neither state nor kept for backward."""

from __future__ import annotations

from attnres_train.setup import FP32_BYTES, Setup


def momentary_bytes(setup: Setup, stage: int) -> int:
    """What stands for a moment in the backward of one micro-batch on `stage`.

    The larger of two moments: in the head, logits in the weights' dtype and in fp32; in a branch, gradients of its
    inner width and the gradient of a matrix. With them the gradients of the sources that the stage reads, one buffer
    each (`depth/source.py`), but for those that crossed a hop, which `depth_history` counts.
    """
    tensor, element, tokens = setup.config.parallel.tensor, setup.element_bytes, setup.micro_batch_tokens
    moments = []
    for cost in (cost for layer in setup.layers_of(stage) for cost in setup.costs.layers[layer]):
        activations = cost.moment.divided // tensor + cost.moment.whole // setup.shards
        moments.append(element * (tokens * activations + cost.moment_parameters // tensor))
    if setup.is_last(stage):
        moments.append(tokens * setup.padded_vocabulary // tensor * (element + FP32_BYTES))
    return max(moments, default=0) + _source_gradients(setup, stage) * setup.slice_bytes


def _source_gradients(setup: Setup, stage: int) -> int:
    """Slices: of sources that the stage made and that no hop brings back."""
    returned = () if setup.is_last(stage) else setup.wire.hop_into(stage + 1).returned
    return len(set(setup.wire.made_on(stage)) - set(returned))


def pool_bytes(setup: Setup, rank: int) -> int:
    """Receive buffers of the messages that are posted ahead on `rank`: one of each direction."""
    wire = setup.wire
    into = [wire.hop_into(stage) for stage in wire.stages_of(rank) if stage]
    back = [wire.hop_into(stage + 1) for stage in wire.stages_of(rank) if not setup.is_last(stage)]
    slices = max((hop.slices for hop in into), default=0) + max((hop.slices_back for hop in back), default=0)
    return slices * setup.slice_bytes
