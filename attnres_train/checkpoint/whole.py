"""Whether all ranks together have read a checkpoint as it was written. A collective, after its state was read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from attnres_train.checkpoint.read_sums import ReadSums, damage, dealt, state_files, unread
from attnres_train.checkpoint.reader import ANOTHER, CheckpointReader
from attnres_train.checkpoint.verify import damages
from attnres_train.errors import Problem, Refused
from attnres_train.parallel.grid import Grid


class Damaged(Refused):
    """A file of a checkpoint is not as it was written: what of it was read must not be used, and an older one may."""

    def __init__(self, folder: Path, texts: Sequence[str]):
        super().__init__([Problem(str(folder), text, ANOTHER) for text in texts])
        self.folder, self.texts = folder, list(texts)

    def __reduce__(self) -> Any:
        return type(self), (self.folder, self.texts)


def whole_after_reading(
    reader: CheckpointReader, grid: Grid, keys: Collection[str], sums: ReadSums, *, again: bool
) -> list[str]:
    """What is wrong with the files of state, one line each, the same on every rank.

    `sums` has what this rank has read of the tensors `keys`, which all ranks together read once; it reads its share of
    all else. `again`: a rank could not read its part, so that every byte is read again; as it is of a file whose parts
    were not all of it.
    """
    files, names = reader.manifest.files, state_files(reader.manifest.files)
    unsure, wrong = list(names), list[str]()
    if not again:
        told = _read_the_rest(reader, grid, keys, sums)
        found = torch.tensor([[sums.sums[name], sums.counts[name]] for name in names], dtype=torch.int64).reshape(-1, 2)
        totals, counts = found[:, 0].contiguous(), found[:, 1].contiguous()
        dist.all_reduce(totals, op=dist.ReduceOp.BXOR, group=grid.control)
        dist.all_reduce(counts, group=grid.control)
        unsure, wrong = [], told
        for name, read_sum, read_bytes in zip(names, totals.tolist(), counts.tolist(), strict=True):
            if read_bytes != files[name].bytes:
                unsure.append(name)
            elif text := damage(name, files[name], read_sum):
                wrong.append(text)
    mine = damages(reader.folder, reader.manifest, unsure[grid.rank :: grid.world_size])
    return wrong + [text for part in _everybody(mine, grid) for text in part]


def _read_the_rest(reader: CheckpointReader, grid: Grid, keys: Collection[str], sums: ReadSums) -> list[str]:
    told = []
    try:
        with closing(reader.files):
            for stretch in dealt(unread(reader.metadata, reader.manifest.files, keys), grid.rank, grid.world_size):
                for block in reader.files.blocks(*stretch):
                    sums.add(stretch.file, [block])
    except OSError as error:
        told.append(f"{error.filename} cannot be read: rank {grid.rank}: {error.strerror}")
    return [text for part in _everybody(told, grid) for text in part]


def _everybody(mine: list[str], grid: Grid) -> list[list[str]]:
    found: list[list[str]] = [[]] * grid.world_size
    dist.all_gather_object(found, mine, group=grid.control)
    return found
