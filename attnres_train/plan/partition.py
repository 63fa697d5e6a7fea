"""How megatron-core 0.16.1 lays parameters end to end and cuts them over the data ranks, and who gets most.

`_ParamAndGradBuffer` takes a chunk's parameters of one dtype in reverse order. Each starts at a multiple of 64
elements, a bucket ends at a multiple of 128 and of the data ranks, and each data rank owns an equal part of every
bucket. Without overlap there is one bucket, but a tied table that two stages hold has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from attnres_train.model.tensors import TensorSpec

_START_MULTIPLE, _END_MULTIPLE = 64, 128


@dataclass(frozen=True)
class Shares:
    """Of one dtype's parameters on the chunks of a rank: elements with padding, and of parameters by data rank."""

    padded: int
    owned: tuple[int, ...]


def shares(chunks: Sequence[Sequence[TensorSpec]], tensor: int, data: int) -> Shares:
    """Of the parameters of all `chunks` of a rank, each in the order of the model, over `data` ranks."""
    padded, owned = 0, [0] * data
    for chunk in chunks:
        for bucket in _buckets(chunk):
            size = _add_bucket([parameter.held(tensor) for parameter in bucket], data, owned)
            padded += size
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
    """Add what each data rank owns of a bucket; returns its padded size."""
    starts, end = [], 0
    for size in sizes:
        start = -(-end // _START_MULTIPLE) * _START_MULTIPLE
        starts.append(start)
        end = start + size
    multiple = lcm(data, _END_MULTIPLE)
    padded = -(-end // multiple) * multiple
    share = padded // data
    for start, size in zip(starts, sizes, strict=True):
        stop = start + size
        for rank in range(start // share, -(-stop // share)):
            owned[rank] += min(stop, (rank + 1) * share) - max(start, rank * share)
    return padded
