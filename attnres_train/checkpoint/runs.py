"""Which elements of a stored piece a rank wants, as runs that lie end to end both in the file and in memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from attnres_train.model.sharding import Sharding


class Run(NamedTuple):
    """`length` elements: from `there` on in the flat piece, from `here` on in what the rank wants."""

    here: int
    there: int
    length: int


def runs(
    sharding: Sharding, rank: int, ranks: int, wanted: slice, offsets: Sequence[int], sizes: Sequence[int]
) -> Iterator[Run]:
    """Of the elements `wanted` of the flat tensor of tensor rank `rank`, those in the piece of `sizes` that begins at
    `offsets` of the logical tensor."""
    shape = sharding.local_shape(ranks)
    for piece in sharding.pieces(rank, ranks):
        begin, end, moved = list(offsets), [o + s for o, s in zip(offsets, sizes, strict=True)], [0] * len(shape)
        if (axis := sharding.axis) is not None:
            begin[axis] = max(begin[axis], piece.logical.start)
            end[axis] = min(end[axis], piece.logical.stop)
            moved[axis] = piece.local.start - piece.logical.start
        counts = [last - first for first, last in zip(begin, end, strict=True)]
        if min(counts, default=1) <= 0:
            continue
        here = [first + by for first, by in zip(begin, moved, strict=True)]
        there = [first - offset for first, offset in zip(begin, offsets, strict=True)]
        for run in _rows(counts, here, shape, there, sizes):
            first, last = max(run.here, wanted.start), min(run.here + run.length, wanted.stop)
            if first < last:
                yield Run(first - wanted.start, run.there + first - run.here, last - first)


def _rows(
    counts: Sequence[int], here: Sequence[int], shape: Sequence[int], there: Sequence[int], sizes: Sequence[int]
) -> Iterator[Run]:
    """A box of `counts` elements, at `here` of a tensor of `shape` and at `there` of one of `sizes`, by rows that are
    as long as both tensors have them end to end."""
    cut = max((axis for axis, n in enumerate(counts) if not n == shape[axis] == sizes[axis]), default=0)
    length = prod(counts[cut:])
    strides = [(prod(shape[axis + 1 :]), prod(sizes[axis + 1 :])) for axis in range(len(shape))]
    for outer in product(*(range(n) for n in counts[:cut])):
        index = [*outer, *[0] * (len(counts) - cut)]
        places = [((h + i) * a, (t + i) * b) for h, t, i, (a, b) in zip(here, there, index, strides, strict=True)]
        yield Run(sum(a for a, _ in places), sum(b for _, b in places), length)
