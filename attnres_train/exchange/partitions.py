"""Where the elements of each parameter lie in the flat partitions of ZeRO's data ranks. Pure.

ZeRO-1 and ZeRO-2 lay the parameters of a group end to end, with gaps between them if they are to be aligned, pad the
whole, and cut it into as many equal partitions as there are data ranks: a parameter lies in one partition or in several
that follow each other. Padding may be left out of a file, so that the last partitions are shorter there.

The files also say, in `param_slice_mappings`, where a rank holds what. That is of the order of the optimizer's groups,
and wrong where `round_robin_gradients` has shuffled them (DeepSpeed 0.19.8): the order of `param_shapes` is the one.

    group     [ embedding ........ | fc1 .......... | fc2 .... | padding ]
    ranks     [ rank 0 ................ | rank 1 ......................... ]

ZeRO-3 cuts every parameter by itself: each rank has ceil(elements / ranks) of it, the last ones fewer and padding. The
partition of a rank is these pieces end to end.

    rank 0    [ embedding, first half | fc1, first half | fc2, first half           ]
    rank 1    [ embedding, the rest   | fc1, the rest   | fc2, the rest and padding ]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
"""By name, in the order in which a group holds them."""


class Part(NamedTuple):
    """Consecutive elements of a parameter: the range `inside` of partition number `group` of data rank `rank`."""

    rank: int
    group: int
    inside: slice

    @property
    def numel(self) -> int:
        return self.inside.stop - self.inside.start


def parts_of_groups(
    groups: Sequence[Shapes], gaps: Sequence[Sequence[int]], lengths: Sequence[Sequence[int]]
) -> dict[str, list[Part]]:
    """ZeRO-1 and ZeRO-2: the parts of every parameter in the order of its elements.

    `gaps[group]` are the elements left free behind each parameter, `lengths[rank][group]` those of each partition.
    """
    parts = {}
    for group, shapes in enumerate(groups):
        offset = 0
        for (name, shape), gap in zip(shapes.items(), gaps[group], strict=True):
            stop = offset + math.prod(shape)
            parts[name] = list(_cut(offset, stop, group, [its[group] for its in lengths]))
            offset = stop + gap
    return parts


def _cut(start: int, stop: int, group: int, lengths: Sequence[int]) -> Iterator[Part]:
    """The range of a flat group, cut at the ends of its partitions."""
    begin = 0
    for rank, length in enumerate(lengths):
        inside = slice(max(start, begin) - begin, min(stop, begin + length) - begin)
        if inside.start < inside.stop:
            yield Part(rank, group, inside)
        begin += length


def parts_of_parameters(groups: Sequence[Shapes], ranks: int) -> dict[str, list[Part]]:
    """ZeRO-3: the same."""
    parts = {}
    for group, shapes in enumerate(groups):
        offset = 0
        for name, shape in shapes.items():
            numel = math.prod(shape)
            length = _share(numel, ranks)
            held = [min(length, max(0, numel - rank * length)) for rank in range(ranks)]
            parts[name] = [Part(rank, group, slice(offset, offset + n)) for rank, n in enumerate(held) if n]
            offset += length
    return parts


def partition_length(shapes: Shapes, ranks: int) -> int:
    """ZeRO-3: elements of a rank's partition of one group, padding included."""
    return sum(_share(math.prod(shape), ranks) for shape in shapes.values())


def _share(numel: int, ranks: int) -> int:
    return -(-numel // ranks)


def uncovered(groups: Sequence[Shapes], parts: Mapping[str, Sequence[Part]]) -> dict[str, tuple[int, int]]:
    """Parameters whose parts are not all of it: elements in the parts, elements of the parameter."""
    found = {}
    for shapes in groups:
        for name, shape in shapes.items():
            held, numel = sum(part.numel for part in parts[name]), math.prod(shape)
            if held != numel:
                found[name] = (held, numel)
    return found
