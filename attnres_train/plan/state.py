"""Bytes of weights, gradients, masters and moments on one rank, to the byte for megatron-core's engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnres_train.model.tensors import TensorSpec
from attnres_train.plan.partition import shares
from attnres_train.setup import FP32_BYTES, Setup

_MOMENTS_BYTES = 2 * FP32_BYTES
Chunks = Sequence[Sequence[TensorSpec]]
"""The tensors of every chunk of a rank."""


@dataclass(frozen=True)
class StateBytes:
    """Of the data rank that holds most. `padding` fills the ends of buckets, `host` is offloaded."""

    weights: int
    gradients: int
    masters: int
    moments: int
    padding: int = 0
    host: int = 0


def state_bytes(setup: Setup, rank: int) -> StateBytes:
    """Of pipeline rank `rank`.

    Of megatron-core's engine: gradients are fp32 and whole; masters and moments are fp32 and divided over the data
    ranks. What is fp32 anyway (everything under precision fp32, the depth vectors always) is its own master.
    """
    chunks = [setup.stages[stage].tensors for stage in setup.wire.stages_of(rank)]
    tensor, element = setup.config.parallel.tensor, setup.element_bytes
    singles, rounded = _split(chunks, lambda spec: spec.fp32 or element == FP32_BYTES)
    held, single = setup.held_by(rank), _held(singles, tensor)
    weights = element * (held - single) + FP32_BYTES * single
    if setup.config.engine.kind == "deepspeed":
        return _zero_bytes(setup, chunks, held, single, weights)
    of_rounded, of_single = shares(rounded, tensor, setup.data), shares(singles, tensor, setup.data)
    padding = (of_rounded.padded - held + single) * (element + FP32_BYTES)
    padding += (of_single.padded - single) * 2 * FP32_BYTES
    masters, moments = max(
        (FP32_BYTES * a, _MOMENTS_BYTES * (a + b)) for a, b in zip(of_rounded.owned, of_single.owned, strict=True)
    )
    return StateBytes(weights, FP32_BYTES * held, masters, moments, padding)


def _split(chunks: Chunks, chosen: Callable[[TensorSpec], bool]) -> tuple[Chunks, Chunks]:
    """The chosen tensors of every chunk, and the others."""
    return [[s for s in chunk if chosen(s)] for chunk in chunks], [[s for s in chunk if not chosen(s)] for chunk in chunks]


def _held(chunks: Chunks, tensor: int) -> int:
    return sum(spec.held(tensor) for chunk in chunks for spec in chunk)


def _zero_bytes(setup: Setup, chunks: Chunks, held: int, single: int, weights: int) -> StateBytes:
    """The same of DeepSpeed's ZeRO, which divides all of it but

        weights      whole up to ZeRO-2. With ZeRO-3 norms and depth vectors stay whole, and the layer or table that is
                     at work
        gradients    whole and fp32 with ZeRO-1, beside the rank's own part; later one bucket of them
        masters      of fp32 weights, too, up to ZeRO-2

    up to the padding of its partitions. Offloaded masters, moments and own parts of gradients are in host memory.
    """
    settings, data = setup.config.engine.deepspeed, setup.data
    stage, own = settings.zero_stage, FP32_BYTES * held // data
    gradients = FP32_BYTES * (held if stage == 1 else min(held, settings.reduce_bucket_size))
    masters = own if stage < 3 else FP32_BYTES * (held - single) // data
    if stage == 3:
        weights = weights // data + setup.element_bytes * _at_work(setup, chunks)
    moments = _MOMENTS_BYTES * held // data
    if settings.offload_optimizer:
        return StateBytes(weights, gradients, 0, 0, host=own + masters + moments)
    return StateBytes(weights, gradients + own, masters, moments)


def _at_work(setup: Setup, chunks: Chunks) -> int:
    """Elements that ZeRO-3 has whole at once: what is not divided, and the largest layer or table."""
    tensor, parts = setup.config.parallel.tensor, Counter[str]()
    for spec in (spec for chunk in chunks for spec in chunk if spec.divided):
        parts[spec.part] += spec.held(tensor)
    return max(parts.values(), default=0) + sum(s.size for chunk in chunks for s in chunk if not s.divided)
