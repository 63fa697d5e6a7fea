"""Seconds of what follows the schedule of a step: gradients over the data ranks, the update, weights over them again.

Gradients are not reduced while backward runs (`engine/megatron.py`); ZeRO-2 and ZeRO-3 reduce those of every
micro-batch, and are charged for them here.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnres_train.plan.speeds import Link, Links, Rates
from attnres_train.setup import FP32_BYTES, Setup

ADAM_BYTES = 28
"""An element of AdamW: weight, gradient and both moments read, weight and moments written, fp32."""
NORM_AND_CLIP_BYTES = 12
"""The gradient read for the norm, read and written by the clipping."""
AVERAGE_BYTES = 12
"""The mean of weights and the weight read, the mean written."""
WHOLE_GRADIENT_BYTES = 12
"""The whole fp32 gradient filled with zeros, and divided by the count of tokens."""
OFFLOAD_BYTES_PER_SECOND = 10e9
"""Of an update in host memory, per rank: DeepSpeed's CPU Adam with its copies over PCIe; an assumption."""


@dataclass(frozen=True)
class EndSeconds:
    """Of one rank: all reduce their gradients, meet for the norm of all of them, then update and gather."""

    reduce: float
    update: float
    gather: float


def end_seconds(setup: Setup, links: Links, rates: Rates, rank: int) -> EndSeconds:
    """Of pipeline rank `rank`."""
    held, engine = setup.held_by(rank), setup.config.engine
    zero_stage = engine.deepspeed.zero_stage if engine.kind == "deepspeed" else 1
    # ZeRO-2 and ZeRO-3 reduce the gradients of every micro-batch; ZeRO-3 gathers for every forward and every backward.
    gradients = (setup.micro_batches if zero_stage > 1 else 1) * FP32_BYTES * held
    weights = (2 * setup.micro_batches if zero_stage > 2 else 1) * (setup.element_bytes * held)
    near, far = links.between_data_ranks()
    reduced = links.data_rate(near.reduce_scatter_bytes_per_second, far.reduce_scatter_bytes_per_second)
    gathered = links.data_rate(near.all_gather_bytes_per_second, far.all_gather_bytes_per_second)
    return EndSeconds(
        reduce=_over_data_ranks(links, gradients, reduced, near) + _tied_seconds(setup, links, rank),
        update=_update_seconds(setup, rates, held),
        gather=_over_data_ranks(links, weights, gathered, near),
    )


def _over_data_ranks(links: Links, size: int, rate: float, near: Link) -> float:
    """A ring of the data ranks over `size` bytes, at a bus rate."""
    if links.data == 1:
        return 0.0
    return size * ((links.data - 1) / links.data) / rate + near.collective_latency_seconds


def _tied_seconds(setup: Setup, links: Links, rank: int) -> float:
    """Of the gradients of a table that both ends of the pipeline hold."""
    wire = setup.wire
    held = [spec for stage in wire.stages_of(rank) for spec in setup.stages[stage].tensors]
    table = sum(spec.held(links.tensor) for spec in held if spec.copies > 1)
    if wire.pipeline == 1 or not table:
        return 0.0
    return FP32_BYTES * table / links.into(wire.num_stages - 1).all_reduce_bytes_per_second


def _update_seconds(setup: Setup, rates: Rates, held: int) -> float:
    """Of the norm, the clipping and AdamW, on what the rank owns; its whole gradient is cleared, too."""
    engine = setup.config.engine
    copied = 0 if setup.element_bytes == FP32_BYTES else FP32_BYTES + setup.element_bytes
    averaged = 0 if setup.config.optimizer.average_decay is None else AVERAGE_BYTES
    own = held / setup.data * (ADAM_BYTES + NORM_AND_CLIP_BYTES + copied + averaged)
    offloaded = engine.kind == "deepspeed" and engine.deepspeed.offload_optimizer
    rate = OFFLOAD_BYTES_PER_SECOND if offloaded else rates.optimizer_bytes_per_second
    return own / rate + held * WHOLE_GRADIENT_BYTES / rates.memory_bytes_per_second
