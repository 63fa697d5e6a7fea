"""Groups, communicators and open files of a rank are those that the plan tells."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from attnres_train.config.run_config import RunConfig
from attnres_train.parallel.grid import build_grid
from attnres_train.plan.groups import (
    MESH_DESCRIPTORS,
    NCCL_DESCRIPTORS,
    OTHER_DESCRIPTORS,
    RankGroups,
    rank_groups,
    why_too_few,
)
from tests import nccl_rules
from tests.distributed import ranks
from tests.distributed.ranks import run_ranks
from tests.distributed.test_checkpoints import run_steps
from tests.distributed.tiny import tiny_config

Layout = tuple[int, dict[str, Any]]
LAYOUTS: list[Layout] = [
    (1, {}),
    (2, {}),
    (4, {"pipeline": 2}),
    (3, {"pipeline": 3, "virtual": 2, "layers": 6, "micro_batch_group": 4}),
    (4, {"tensor": 2, "pipeline": 2, "sequence": True}),
    (3, {"pipeline": 3, "tied": True}),
    (4, {"tensor": 2}),
    pytest.param((8, {"tensor": 2, "pipeline": 2}), marks=pytest.mark.slow),
    pytest.param((8, {"pipeline": 4, "tied": True}), marks=pytest.mark.slow),
]


def planned(layout: Layout) -> RankGroups:
    world, settings = layout
    return rank_groups(tiny_config(**settings), world)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def made(config: RunConfig) -> tuple[list[int], int, int]:
    """Members of all groups there are; files that the grid has opened, and that one more mesh of all ranks opens."""
    before = open_files()
    build_grid(config.parallel, seed=1)
    after, sizes = open_files(), sorted(group.size() for group in distributed_c10d._world.pg_map)
    dist.new_group(backend="gloo")
    return sizes, after - before, open_files() - after


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_groups_and_open_files_are_the_plan_s(layout: Layout) -> None:
    world, settings = layout
    plan = planned(layout)
    stores = plan.descriptors(True) - world - MESH_DESCRIPTORS
    found = run_ranks(made, world, tiny_config(**settings))
    sizes, opened, mesh = found[0]
    assert sizes == sorted(plan.made)
    # The group of all ranks was there before the grid, and so was the store.
    assert opened == plan.descriptors(False) - stores - world - MESH_DESCRIPTORS
    assert mesh == world + MESH_DESCRIPTORS
    assert all(others <= opened for _, others, _ in found), "a rank opens more than the first"


def formed(config: RunConfig, folder: Path | None) -> list[int]:
    """Members of what has formed by the end of a step and a save; None: once the grid is built."""
    if folder is None:
        build_grid(config.parallel, seed=1)
    else:
        run_steps(config, 0, 1, folder, save=True)
    groups = [group for group in distributed_c10d._world.pg_map if isinstance(group, nccl_rules.RulesGroup)]
    return sorted((group.size() for group in groups if group.formed and group.size() > 1), reverse=True)


@pytest.mark.parametrize(
    "layout",
    [(4, {"pipeline": 2, "tied": True}), *(pytest.param(one, marks=pytest.mark.slow) for one in LAYOUTS[1:5])]
    + [
        pytest.param((2, {"zero": {"stage": 1}}), marks=pytest.mark.slow),
        pytest.param((2, {"zero": {"stage": 1}, "tensor": 2}), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_communicators_are_the_plan_s(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a step and a save form under the rules of NCCL; pairs of single messages are not among them."""
    monkeypatch.setattr(ranks, "Meeting", nccl_rules.Meeting)
    world, settings = layout
    found = run_ranks(formed, world, tiny_config(**settings), tmp_path)
    assert found[0] == list(planned(layout).communicators)
    assert max(map(len, found)) == len(found[0]), "a rank has more than the first"


def test_a_step_forms_none_but_that_of_tied_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A communicator wants memory of the device, which is full in the middle of a step."""
    monkeypatch.setattr(ranks, "Meeting", nccl_rules.Meeting)
    for layout in ((4, {"pipeline": 2}), (4, {"tensor": 2})):
        world, settings = layout
        assert run_ranks(formed, world, tiny_config(**settings), None)[0] == list(planned(layout).communicators)


def test_only_tied_tables_have_a_group_of_the_first_and_the_last_stage() -> None:
    assert planned((3, {"pipeline": 3})).communicators == (3,) * 5
    assert planned((3, {"pipeline": 3, "tied": True})).communicators == (*(3,) * 5, 2)


def test_a_limit_that_is_too_low_is_told_before_it_is_reached() -> None:
    many = planned((512, {"tensor": 2, "pipeline": 2}))
    assert many.descriptors(True) == 512 + 3 + 2 * 512
    told = why_too_few(many, True, 1024)
    assert told is not None and "1,024 files" in told and "a rank of 512" in told
    assert why_too_few(many, False, many.wanted(False)) is None is why_too_few(many, True, None)
    assert why_too_few(many, False, many.wanted(False) - 1) is not None
    few = planned((2, {}))
    assert few.wanted(True) == 2 + 3 + 2 * 2 + NCCL_DESCRIPTORS + OTHER_DESCRIPTORS
    assert why_too_few(few, True, 1024) is None
    assert few.in_words() == "1 communicator (1 of 2), 9 files a rank; on CPUs 18 files"
