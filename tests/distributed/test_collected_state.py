"""Whole tensors from the shards of data ranks: every bit, however large they are, by sums of integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnres_train.config.run_config import RunConfig
from attnres_train.engine import sharded
from attnres_train.engine.sharded import ShardedState
from attnres_train.parallel.grid import build_grid
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import tiny_config
from tests.distributed.training import build_tiny, step_tiny

ODD = torch.tensor([0x7FC12345, 0xFFC54321, 0x80000000, 0x00000001, 0x7F800000], dtype=torch.int64).to(torch.int32)
"""Bits of fp32 that a sum of numbers would not keep: NaNs with a payload, minus zero, a denormal, infinity."""


def collected(config: RunConfig) -> tuple[dict[str, Tensor], dict[str, tuple[int, int, Tensor]]]:
    """Bits by kind and name: what this rank is given of all, whole, and what it holds, with its place and the size."""
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    step_tiny(parts, config, grid, 0)
    engine: Any = parts.engine
    assert isinstance(engine, ShardedState)
    held = {}
    for part in engine.held():
        count = min(len(ODD), part.tensor.numel())
        part.tensor[:count] = ODD[:count].view(torch.float32)
        held[part.key] = (part.owned.start, part.logical.numel, part.tensor.clone().view(torch.int32))
    return {part.key: part.tensor.reshape(-1).view(torch.int32) for part in engine.share()}, held


def whole(parts: list[tuple[int, int, Tensor]]) -> Tensor:
    """From the ranges of all ranks."""
    bits = torch.full((parts[0][1],), -7, dtype=torch.int32)
    for start, _, part in parts:
        bits[start : start + part.numel()] = part
    return bits


@pytest.mark.parametrize("elements", [97, 16 << 20])
def test_every_tensor_comes_whole_to_one_rank(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "_PIECE_ELEMENTS", elements)
    found = run_ranks(collected, 6, tiny_config("block", pipeline=2))
    for stage in range(2):
        ranks = found[3 * stage : 3 * stage + 3]
        keys = {key for _, held in ranks for key in held}
        assert sorted(key for given, _ in ranks for key in given) == sorted(keys), "each on one data rank"
        assert all(given for given, _ in ranks)
        for key, bits in (pair for given, _ in ranks for pair in given.items()):
            assert bits.equal(whole([held[key] for _, held in ranks if key in held])), key
