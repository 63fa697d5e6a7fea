"""Which of the pipeline's groups a hop uses (`lanes.py` says why there are several); also what a plan counts."""

from __future__ import annotations


def colour(edge: int, pipeline: int, colours: int) -> int:
    """Of the hop between `edge` and `edge + 1`; the last one, which closes the ring, has a third where there is one."""
    return colours - 1 if edge == pipeline - 1 and pipeline > 1 else edge % 2


def colours_of(pipeline: int, ring: bool) -> int:
    """Groups in each direction. `ring`: messages go from the last rank to the first, too (virtual stages)."""
    return 3 if ring and pipeline % 2 else 2
