"""The work, cut in shards: a pure function of the files' sizes, the same on every machine.

A shard is a stretch of the inputs in their order, made of pieces of files: some lines of a large `.jsonl`, some
row groups of a large `.parquet`, or whole files. Compressed and `.txt` files are never cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from attnres_train.errors import refuse

MIB = 1 << 20
SMALLEST_SHARD_BYTES = MIB
LARGEST_SHARD_BYTES = 128 * MIB
SHARDS_AT_LEAST = 256
"""So many shards are made where that leaves none too small, so that each of many workers gets some."""
MOST_PIECES = 1000


@dataclass(frozen=True)
class Cuttable:
    """An input file and where it may be cut: `at_any_byte` (lines), between row `groups` of these bytes, or nowhere."""

    path: Path
    bytes: int
    at_any_byte: bool = False
    groups: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Piece:
    """The lines that begin in bytes [start, end) of a file, its row groups [start, end), or all of it (None)."""

    path: Path
    start: int | None
    end: int | None
    bytes: int
    """What it takes on disk."""
    offset: int = 0
    """The byte on disk at which it begins."""


@dataclass(frozen=True)
class Shard:
    """Pieces that are worked on and kept together."""

    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)


def plan_shards(files: Sequence[Cuttable]) -> list[Shard]:
    """The shards of `files`, in order. Cutting depends on the sizes alone, never on workers or parts."""
    total = sum(file.bytes for file in files)
    target = min(LARGEST_SHARD_BYTES, max(SMALLEST_SHARD_BYTES, total // SHARDS_AT_LEAST))
    shards: list[Shard] = []
    gathered: list[Piece] = []
    held = 0
    for piece in (piece for file in files for piece in _cut(file, target)):
        if gathered and (held + piece.bytes > target or len(gathered) == MOST_PIECES):
            shards.append(Shard(tuple(gathered)))
            gathered, held = [], 0
        gathered.append(piece)
        held += piece.bytes
    return [*shards, Shard(tuple(gathered))] if gathered else shards


def _cut(file: Cuttable, target: int) -> Iterator[Piece]:
    if file.groups is not None:
        yield from _cut_groups(file, file.groups, target)
    elif file.at_any_byte and file.bytes > target:
        count = -(-file.bytes // target)
        edges = [file.bytes * i // count for i in range(count + 1)]
        for start, end in zip(edges, edges[1:], strict=False):
            yield Piece(file.path, start, end, end - start, start)
    else:
        yield Piece(file.path, None, None, file.bytes)


def _cut_groups(file: Cuttable, sizes: tuple[int, ...], target: int) -> Iterator[Piece]:
    start = offset = held = 0
    for group, size in enumerate(sizes):
        if held and held + size > target:
            yield Piece(file.path, start, group, held, offset)
            start, offset, held = group, offset + held, 0
        held += size
    yield Piece(file.path, start, len(sizes), held, offset)


def part_of(shards: Sequence[Shard], number: int, of: int) -> list[Shard]:
    """The shards of part `number` (from 1) of `of`: consecutive, of about equal bytes, at least one.

    The parts one after the other are all shards. Raises Refused where there are fewer shards than parts.
    """
    if of > len(shards):
        what = f"the inputs make {len(shards)} shards, too few for {of} parts"
        raise refuse("--part", what, f"use at most {len(shards)} parts; compressed and .txt files are not cut")
    ends = list(accumulate(shard.bytes for shard in shards))
    edges = [0]
    for part in range(1, of):
        # The place nearest to an even share, leaving a shard for every part before and after.
        share = ends[-1] * part // of
        wanted = 1 + min(range(len(ends)), key=lambda i: abs(ends[i] - share))
        edges.append(min(max(wanted, edges[-1] + 1), len(shards) - (of - part)))
    edges.append(len(shards))
    return list(shards[edges[number - 1] : edges[number]])
