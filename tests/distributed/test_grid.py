"""The groups of a grid: who is in each, and how many threads they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from attnres_train.parallel.config import ParallelConfig
from attnres_train.parallel.grid import build_grid
from tests.distributed.ranks import run_ranks

NAMES = ("tp", "pp", "dp", "cp", "dp_cp", "mp", "tp_cp")


def threads_and_members(degrees: dict[str, Any]) -> tuple[int, dict[str, list[int]], int]:
    """Threads of this rank that a grid has started, the members of its groups, and how many groups these really are."""
    before = len(list(Path("/proc/self/task").iterdir()))
    grid = build_grid(ParallelConfig(**degrees), seed=1)
    groups = {name: getattr(grid.groups, name) for name in NAMES}
    members = {name: dist.get_process_group_ranks(group) for name, group in groups.items()}
    different = {id(group) for group in (*groups.values(), dist.group.WORLD)}
    return len(list(Path("/proc/self/task").iterdir())) - before, members, len(different)


def test_one_rank_starts_a_handful_of_threads() -> None:
    """gloo starts three for each group, and megatron-core makes some twenty: together they were 66."""
    ((threads, members, different),) = run_ranks(threads_and_members, 1, {})
    assert threads <= 3
    assert set(map(tuple, members.values())) == {(0,)} and different == 1


@pytest.mark.parametrize(
    ("degrees", "wider"),
    [
        ({}, {"dp": [0, 1], "dp_cp": [0, 1]}),
        ({"pipeline": 2}, {"pp": [0, 1], "mp": [0, 1]}),
        ({"tensor": 2}, {"tp": [0, 1], "mp": [0, 1], "tp_cp": [0, 1]}),
    ],
)
def test_groups_of_the_same_ranks_are_one(degrees: dict[str, Any], wider: dict[str, list[int]]) -> None:
    for rank, (_, members, different) in enumerate(run_ranks(threads_and_members, 2, degrees)):
        assert members == {name: [rank] for name in NAMES} | wider
        assert different == 2, "that of this rank alone, and that of all"
