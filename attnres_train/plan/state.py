"""Bytes of weights, gradients, masters and moments on one rank, to the byte for megatron-core's engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnres_train.config.run_config import RunConfig
from attnres_train.parallel.wire import WirePlan
from attnres_train.plan.partition import shares
from attnres_train.plan.tensors import ParameterTensor, stage_tensors
from attnres_train.plan.units import FP32_BYTES, element_bytes

_MOMENTS_BYTES = 2 * FP32_BYTES


@dataclass(frozen=True)
class StateBytes:
    """Of the data rank that holds most. `padding` fills the ends of buckets, `host` is offloaded."""

    weights: int
    gradients: int
    masters: int
    moments: int
    padding: int = 0
    host: int = 0


def state_bytes(config: RunConfig, padded_vocabulary: int, wire: WirePlan, rank: int, data: int) -> StateBytes:
    """Of pipeline rank `rank`, over `data` data ranks.

    Of megatron-core's engine: gradients are fp32 and whole; masters and moments are fp32 and divided over the data
    ranks. What is fp32 anyway (everything under precision fp32, the depth vectors always) is its own master.
    """
    chunks = [stage_tensors(config, padded_vocabulary, wire, stage) for stage in wire.stages_of(rank)]
    tensor, element = config.parallel.tensor, element_bytes(config)
    is_single = [[p.single or element == FP32_BYTES for p in chunk] for chunk in chunks]
    singles = [[p for p, yes in zip(c, flags, strict=True) if yes] for c, flags in zip(chunks, is_single, strict=True)]
    rounded = [
        [p for p, yes in zip(c, flags, strict=True) if not yes] for c, flags in zip(chunks, is_single, strict=True)
    ]
    held, single = _held(chunks, tensor), _held(singles, tensor)
    weights = element * (held - single) + FP32_BYTES * single
    if config.engine.kind == "deepspeed":
        return _zero_bytes(config, chunks, held, single, weights, data)
    of_rounded, of_single = shares(rounded, tensor, data), shares(singles, tensor, data)
    padding = (of_rounded.padded - held + single) * (element + FP32_BYTES)
    padding += (of_single.padded - single) * 2 * FP32_BYTES
    masters, moments = max(
        (FP32_BYTES * a, _MOMENTS_BYTES * (a + b)) for a, b in zip(of_rounded.owned, of_single.owned, strict=True)
    )
    return StateBytes(weights, FP32_BYTES * held, masters, moments, padding)


def _held(chunks: Sequence[Sequence[ParameterTensor]], tensor: int) -> int:
    return sum(parameter.held(tensor) for chunk in chunks for parameter in chunk)


def _zero_bytes(
    config: RunConfig,
    chunks: Sequence[Sequence[ParameterTensor]],
    held: int,
    single: int,
    weights: int,
    data: int,
) -> StateBytes:
    """The same of DeepSpeed's ZeRO, which divides all of it but

        weights      whole up to ZeRO-2. With ZeRO-3 norms and depth vectors stay whole, and the layer or table that is
                     at work
        gradients    whole and fp32 with ZeRO-1, beside the rank's own part; later one bucket of them
        masters      of fp32 weights, too, up to ZeRO-2

    up to the padding of its partitions. Offloaded masters, moments and own parts of gradients are in host memory.
    """
    settings, tensor = config.engine.deepspeed, config.parallel.tensor
    stage, own = settings.zero_stage, FP32_BYTES * held // data
    gradients = FP32_BYTES * (held if stage == 1 else min(held, settings.reduce_bucket_size))
    masters = own if stage < 3 else FP32_BYTES * (held - single) // data
    if stage == 3:
        weights = weights // data + element_bytes(config) * _at_work(chunks, tensor)
    moments = _MOMENTS_BYTES * held // data
    if settings.offload_optimizer:
        return StateBytes(weights, gradients, 0, 0, host=own + masters + moments)
    return StateBytes(weights, gradients + own, masters, moments)


def _at_work(chunks: Sequence[Sequence[ParameterTensor]], tensor: int) -> int:
    """Elements that ZeRO-3 has whole at once: what is not divided, and the largest layer or table."""
    everything = [parameter for chunk in chunks for parameter in chunk]
    tables = max((p.held(tensor) for p in everything if p.table), default=0)
    matrices = sum(p.held(tensor) for p in everything if p.divided and not p.table)
    layers = sum(p.pieces == 2 for p in everything)
    return max(tables, matrices // max(layers, 1)) + sum(p.size for p in everything if not p.divided)
