"""Bytes of weights, gradients, masters, moments and means on one rank, to the byte for megatron-core's engine.

megatron-core 0.16.1 (`_ParamAndGradBuffer`) lays a chunk's parameters of one dtype end to end in reverse order and cuts
them over the data ranks. Each starts at a multiple of 64 elements, a bucket ends at a multiple of 128 and of the data
ranks, and each data rank owns an equal part of every bucket. Without overlap there is one bucket, but a tied table that
two stages hold has its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import lcm

from attnres_train.engine.config import DeepSpeedSection, EngineConfig
from attnres_train.model.tensors import TensorSpec
from attnres_train.setup import FP32_BYTES, Setup, StageTensors

_MOMENTS_BYTES = 2 * FP32_BYTES
_START_MULTIPLE, _END_MULTIPLE = 64, 128


@dataclass(frozen=True)
class StateBytes:
    """Of the data rank that holds most. `padding` fills the ends of buckets, `host` is offloaded."""

    weights: int
    gradients: int
    masters: int
    moments: int
    padding: int = 0
    host: int = 0
    average: int = 0
    """Of the mean of weights, if one is kept."""


def state_bytes(setup: Setup, rank: int) -> StateBytes:
    """Of pipeline rank `rank`.

    Of megatron-core's engine: gradients are fp32 and whole; masters and moments are fp32 and divided over the data
    ranks. What is fp32 anyway (everything under precision fp32, the depth vectors always) is its own master.
    """
    stages = tuple(setup.stages[stage] for stage in setup.wire.stages_of(rank))
    averages = setup.config.optimizer.average_decay is not None
    degrees = (setup.config.parallel.tensor, setup.data)
    return _of_stages(stages, *degrees, setup.element_bytes, setup.config.engine, averages)


@lru_cache(maxsize=4096)
def _of_stages(
    stages: tuple[StageTensors, ...], tensor: int, data: int, element: int, engine: EngineConfig, averages: bool
) -> StateBytes:
    """Kept, since advice asks for the same stages in many setups."""
    singles = [[spec for spec in stage.tensors if spec.fp32 or element == FP32_BYTES] for stage in stages]
    held = sum(stage.held(tensor) for stage in stages)
    single = sum(spec.held(tensor) for chunk in singles for spec in chunk)
    weights = element * (held - single) + FP32_BYTES * single
    if engine.kind == "deepspeed":
        at_work = element * _at_work([spec for stage in stages for spec in stage.tensors], tensor)
        return _zero_bytes(engine.deepspeed, data, held, single, weights, at_work, averages)
    rounded = [[spec for spec in stage.tensors if not (spec.fp32 or element == FP32_BYTES)] for stage in stages]
    of_rounded, of_single = shares(rounded, tensor, data), shares(singles, tensor, data)
    padding = (of_rounded.padded - held + single) * (element + FP32_BYTES)
    padding += (of_single.padded - single) * 2 * FP32_BYTES
    masters, moments = max(
        (FP32_BYTES * a, _MOMENTS_BYTES * (a + b)) for a, b in zip(of_rounded.owned, of_single.owned, strict=True)
    )
    average = moments * FP32_BYTES // _MOMENTS_BYTES if averages else 0
    return StateBytes(weights, FP32_BYTES * held, masters, moments, padding, average=average)


def _zero_bytes(
    settings: DeepSpeedSection, data: int, held: int, single: int, weights: int, at_work: int, averages: bool
) -> StateBytes:
    """The same of DeepSpeed's ZeRO, which divides all of it but

        weights      whole up to ZeRO-2. With ZeRO-3 norms and depth vectors stay whole, and the layer or table that is
                     at work
        gradients    whole and fp32 with ZeRO-1, beside the rank's own part; later one bucket of them
        masters      of fp32 weights, too, up to ZeRO-2

    up to the padding of its partitions. Offloaded masters, moments and own parts of gradients are in host memory.
    """
    stage, own = settings.zero_stage, FP32_BYTES * held // data
    gradients = FP32_BYTES * (held if stage == 1 else min(held, settings.reduce_bucket_size))
    masters = own if stage < 3 else FP32_BYTES * (held - single) // data
    if stage == 3:
        weights = weights // data + at_work
    moments = _MOMENTS_BYTES * held // data
    average = own if averages else 0
    if settings.offload_optimizer:
        return StateBytes(weights, gradients, 0, 0, host=own + masters + moments + average)
    return StateBytes(weights, gradients + own, masters, moments, average=average)


def _at_work(tensors: Sequence[TensorSpec], tensor: int) -> int:
    """Elements that ZeRO-3 has whole at once: what is not divided, and the largest layer or table."""
    parts = Counter[str]()
    for spec in tensors:
        parts[spec.part] += spec.held(tensor) if spec.divided else 0
    return max(parts.values(), default=0) + sum(spec.size for spec in tensors if not spec.divided)


@dataclass(frozen=True)
class Shares:
    """Of one dtype's parameters on the chunks of a rank: elements with padding, and of parameters by data rank."""

    padded: int
    owned: tuple[int, ...]


def shares(chunks: Sequence[Sequence[TensorSpec]], tensor: int, data: int) -> Shares:
    """Of the parameters of all `chunks` of a rank, each in the order of the model, over `data` ranks."""
    padded, owned = 0, [0] * data
    for bucket in (bucket for chunk in chunks for bucket in _buckets(chunk)):
        padded += _add_bucket([parameter.held(tensor) for parameter in bucket], data, owned)
    return Shares(padded, tuple(owned))


def _buckets(chunk: Sequence[TensorSpec]) -> list[list[TensorSpec]]:
    buckets: list[list[TensorSpec]] = [[]]
    for parameter in reversed(chunk):
        if parameter.copies > 1:
            buckets += [[parameter], []]
        else:
            buckets[-1].append(parameter)
    return [bucket for bucket in buckets if bucket]


def _add_bucket(sizes: Sequence[int], data: int, owned: list[int]) -> int:
    """Add what each data rank owns of a bucket, its share without the gaps in it; returns the bucket's padded size."""
    gaps, end = [], 0
    for size in sizes:
        start = -(-end // _START_MULTIPLE) * _START_MULTIPLE
        gaps.append((end, start))
        end = start + size
    multiple = lcm(data, _END_MULTIPLE)
    padded = -(-end // multiple) * multiple
    share = padded // data
    owned[:] = [elements + share for elements in owned]
    for start, stop in (*gaps, (end, padded)):
        for rank in range(start // share, -(-stop // share)):
            owned[rank] -= min(stop, (rank + 1) * share) - max(start, rank * share)
    return padded
