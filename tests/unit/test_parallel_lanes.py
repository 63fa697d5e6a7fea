"""Groups of the pipeline's messages, without processes: on any number of ranks, in a row and closed to a ring."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from attnres_train.parallel import lanes as lanes_module
from attnres_train.parallel.colours import colours_of
from attnres_train.parallel.lanes import Lanes, make_lanes

GRIDS = [(pipeline, ring) for pipeline in (2, 3, 4, 5, 7, 8) for ring in (False, True)]


def named(pipeline: int, ring: bool) -> Any:
    numbers = range(colours_of(pipeline, ring))
    return Lanes(*(tuple(f"{way} {number}" for number in numbers) for way in ("forward", "backward")))  # type: ignore[arg-type]


@pytest.mark.parametrize(("pipeline", "ring"), GRIDS)
@pytest.mark.parametrize("step", [1, -1])
def test_what_a_rank_sends_its_neighbour_hears_in_the_same_group(pipeline: int, ring: bool, step: int) -> None:
    lanes = named(pipeline, ring)
    for rank in range(pipeline):
        sends, hears = lanes.of(rank, pipeline, step)
        assert sends.startswith("forward" if step == 1 else "backward")
        beyond = rank + step if ring else min(max(rank + step, 0), pipeline - 1)
        if beyond != rank:
            assert lanes.of(beyond % pipeline, pipeline, step)[1] == sends
        if ring or 0 < rank < pipeline - 1:
            assert sends != hears, "a receive would wait in front of a send"


def test_an_odd_ring_has_a_third_group() -> None:
    grids = [(2, True), (3, False), (3, True), (8, True), (5, True)]
    assert [colours_of(pipeline, ring) for pipeline, ring in grids] == [2, 2, 3, 2, 3]


@pytest.mark.parametrize(("ring", "groups"), [(False, 4), (True, 6)])
def test_no_two_lanes_share_a_group(ring: bool, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(
        get_world_size=lambda: 3,
        all_gather_object=lambda members, mine, group: members.__setitem__(slice(None), [mine] * 3),
        get_process_group_ranks=lambda _: [0, 1, 2],
        new_group=lambda *_, **__: object(),
        GroupMember=SimpleNamespace(NON_GROUP_MEMBER=None),
    )
    monkeypatch.setattr(lanes_module, "dist", fake)
    pipeline: Any = SimpleNamespace(size=lambda: 3)
    lanes = make_lanes(pipeline, ring, None, None)  # type: ignore[arg-type]
    assert len({id(one) for one in (*lanes.forward, *lanes.backward)}) == groups
