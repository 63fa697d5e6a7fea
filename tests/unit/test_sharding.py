"""Cutting a logical tensor over ranks loses nothing and counts nothing twice."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from attnres_train.model.sharding import Sharding


@given(
    ranks=st.integers(1, 8),
    per_rank=st.integers(1, 5),
    blocks=st.integers(1, 3),
    other=st.integers(1, 4),
    axis=st.sampled_from([0, 1]),
    trimmed=st.integers(0, 7),
)
def test_pieces_of_all_ranks_rebuild_the_tensor(
    ranks: int, per_rank: int, blocks: int, other: int, axis: int, trimmed: int
) -> None:
    padded = ranks * per_rank * blocks
    length = max(1, padded - trimmed) if blocks == 1 else padded
    shape = (length, other) if axis == 0 else (other, length)
    logical = torch.arange(length * other, dtype=torch.float64).reshape(shape) + 1
    sharding = Sharding(shape, axis, blocks, padded)
    rebuilt = torch.zeros(shape, dtype=torch.float64)
    held = 0
    for rank in range(ranks):
        local = sharding.cut(logical, rank, ranks)
        assert tuple(local.shape) == sharding.local_shape(ranks)
        for piece in sharding.pieces(rank, ranks):
            index = (slice(None),) * axis
            rebuilt[(*index, piece.logical)] += local[(*index, piece.local)]
        held += local.count_nonzero().item()
    assert rebuilt.equal(logical)
    assert held == logical.numel(), "padded rows are zero on every rank"


def test_stacked_gate_and_up_give_every_rank_matching_rows() -> None:
    gate_and_up = torch.tensor([[10.0], [11.0], [20.0], [21.0]])
    sharding = Sharding((4, 1), axis=0, blocks=2)
    assert sharding.cut(gate_and_up, 0, 2).flatten().tolist() == [10, 20]
    assert sharding.cut(gate_and_up, 1, 2).flatten().tolist() == [11, 21]
