"""Which elements of a file a rank reads: put together they are its tensor, and nobody's else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from attnres_train.checkpoint.runs import runs
from attnres_train.model.sharding import Sharding

SHARDINGS = [
    Sharding((7,)),
    Sharding((3, 5)),
    Sharding((12, 5), axis=0),
    Sharding((5, 12), axis=1),
    Sharding((24, 3), axis=0, blocks=2),
    Sharding((13, 4), axis=0, padded=24),
    Sharding((2, 24, 3), axis=1, blocks=2),
    Sharding((2, 3, 12), axis=2),
    Sharding(()),
]


def saved_pieces(logical: Tensor, sharding: Sharding, ranks: int) -> Iterator[tuple[list[int], Tensor]]:
    """Offsets and elements of what `ranks` tensor ranks save."""
    for rank in range(ranks if sharding.axis is not None else 1):
        for piece in sharding.pieces(rank, ranks):
            offsets, index = [0] * logical.dim(), [slice(None)] * logical.dim()
            if sharding.axis is not None:
                offsets[sharding.axis], index[sharding.axis] = piece.logical.start, piece.logical
            yield offsets, logical[tuple(index)].contiguous()


@pytest.mark.parametrize("sharding", SHARDINGS, ids=str)
def test_every_rank_of_every_layout_finds_its_elements_in_what_any_layout_saved(sharding: Sharding) -> None:
    logical = torch.arange(1.0, 1 + torch.Size(sharding.shape).numel()).view(sharding.shape)
    for savers, loaders, data in ((s, t, d) for s in (1, 2, 3) for t in (1, 2, 4) for d in (1, 2, 5)):
        pieces = list(saved_pieces(logical, sharding, savers))
        for rank in range(loaders):
            mine = sharding.cut(logical, rank, loaders).reshape(-1)
            size = -(-mine.numel() // data)
            for start in range(0, mine.numel(), size):
                wanted = slice(start, min(start + size, mine.numel()))
                found, times = torch.zeros(wanted.stop - start), torch.zeros(wanted.stop - start)
                for offsets, piece in pieces:
                    for here, there, length in runs(sharding, rank, loaders, wanted, offsets, piece.shape):
                        assert length > 0
                        found[here : here + length] = piece.reshape(-1)[there : there + length]
                        times[here : here + length] += 1
                assert found.equal(mine[wanted]), (savers, loaders, rank, wanted)
                assert times.equal((mine[wanted] > 0).float()), "an element is read twice, or padding is read"


@pytest.mark.parametrize(
    ("sharding", "ranks", "wanted", "number"),
    [
        (Sharding((6, 4)), 1, slice(5, 20), 1),
        (Sharding((6, 4), axis=0), 2, slice(1, 11), 1),
        (Sharding((6, 4), axis=1), 2, slice(1, 11), 1),
        (Sharding((8, 4), axis=0, blocks=2), 2, slice(1, 15), 2),
    ],
)
def test_what_the_same_layout_saved_is_read_in_one_go(
    sharding: Sharding, ranks: int, wanted: slice, number: int
) -> None:
    """A call to the system for each row of a matrix would be thousands."""
    logical = torch.zeros(sharding.shape)
    pieces = list(saved_pieces(logical, sharding, ranks))
    found = [r for offsets, piece in pieces for r in runs(sharding, 1 % ranks, ranks, wanted, offsets, piece.shape)]
    assert len(found) == number
    assert sum(run.length for run in found) == wanted.stop - wanted.start
