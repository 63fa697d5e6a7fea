"""What travels between pipeline stages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres_train.depth.layout import DepthLayout
from attnres_train.parallel.split import balanced_split
from attnres_train.parallel.wire import Hop, WirePlan, slice_bytes


@st.composite
def plans(draw: st.DrawFn) -> WirePlan:
    pipeline, virtual = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    split = tuple(draw(st.lists(st.integers(0, 4), min_size=pipeline * virtual, max_size=pipeline * virtual)))
    split = (split[0] + 1, *split[1:])
    sublayers = 2 * sum(split)
    mode = draw(st.sampled_from(["standard", "full", "block"]))
    size = {"standard": None, "full": 1, "block": draw(st.integers(1, 9))}[mode]
    return WirePlan(DepthLayout(sublayers, mode, size), split, pipeline, virtual)  # type: ignore[arg-type]


@settings(deadline=None)
@given(plans())
def test_every_read_is_received_or_made_on_the_stage(plan: WirePlan) -> None:
    layout = plan.layout
    for stage in range(plan.num_stages):
        held = set(plan.hop_into(stage).sources) if stage else set(range(layout.sources_before(0)))
        first, end = plan.first_sublayer(stage), plan.first_sublayer(stage) + 2 * plan.layers_per_stage[stage]
        for sublayer in range(first, end):
            assert set(layout.reads(sublayer).sources) == held
            if layout.completes_block(sublayer):
                held.add(layout.sources_before(sublayer + 1) - 1)
        if stage == plan.num_stages - 1:
            assert held == set(layout.head_reads().sources)


@settings(deadline=None)
@given(plans())
def test_hops_chain_and_a_partial_travels_exactly_where_a_block_is_open(plan: WirePlan) -> None:
    hops = plan.hops()
    assert [(hop.from_stage, hop.to_stage) for hop in hops] == [(s, s + 1) for s in range(plan.num_stages - 1)]
    for hop in hops:
        assert hop.partial == plan.layout.partial_before(plan.first_sublayer(hop.to_stage))
        assert hop.slices == len(hop.sources) + hop.partial >= 1


@settings(deadline=None)
@given(plans())
def test_totals_are_those_of_the_hops(plan: WirePlan) -> None:
    slices = [hop.slices for hop in plan.hops()]
    assert plan.slices_total == sum(slices)
    assert plan.slices_max == max(slices, default=0)
    assert plan.slices_standard == plan.pipeline * plan.virtual - 1


@pytest.mark.parametrize(
    ("layers", "layers_a_block", "pipeline", "virtual", "standard", "total", "largest"),
    [
        (27, 3, 3, 3, 8, 44, 9),
        (32, 4, 4, 2, 7, 35, 8),
        (48, 6, 8, 2, 15, 79, 9),
        (93, 12, 4, 4, 15, 79, 9),
        (93, 12, 8, 2, 15, 79, 9),
        (93, 12, 8, 4, 31, 167, 9),
        (93, 12, 8, 1, 7, 35, 8),
    ],
)
def test_slices_of_published_layouts_under_a_near_even_split(
    layers: int, layers_a_block: int, pipeline: int, virtual: int, standard: int, total: int, largest: int
) -> None:
    split = balanced_split(layers, pipeline * virtual)
    plan = WirePlan(DepthLayout(2 * layers, "block", 2 * layers_a_block), split, pipeline, virtual)
    assert (plan.slices_standard, plan.slices_total, plan.slices_max) == (standard, total, largest)


def test_the_standard_residual_sends_one_slice_a_hop() -> None:
    plan = WirePlan(DepthLayout(8, "standard", None), (1, 1, 1, 1), 4)
    assert plan.slices_total == plan.slices_standard == 3


def test_a_boundary_inside_a_block_sends_sources_and_partial() -> None:
    plan = WirePlan(DepthLayout(8, "block", 3), (2, 2), 2)
    assert plan.hops() == (Hop(0, 1, (0, 1), partial=True),)


def test_an_empty_first_stage_sends_the_embedding_alone() -> None:
    assert WirePlan(DepthLayout(4, "block", 2), (0, 2), 2).hops() == (Hop(0, 1, (0,), partial=False),)
    assert WirePlan(DepthLayout(4, "standard", None), (0, 2), 2).hops() == (Hop(0, 1, (), partial=True),)


def test_ranks_of_a_hop_wrap_from_the_last_to_the_first() -> None:
    plan = WirePlan(DepthLayout(8, "full", 1), (1, 1, 1, 1), pipeline=2, virtual=2)
    assert [plan.ranks_of(hop) for hop in plan.hops()] == [(0, 1), (1, 0), (0, 1)]


@pytest.mark.parametrize(
    ("split", "pipeline", "message"),
    [((2, 2), 3, "2 stages in the split, 3 in the grid"), ((3, 3), 2, "holds 6 layers, the layout 7")],
)
def test_a_split_that_does_not_fit_is_refused(split: tuple[int, ...], pipeline: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WirePlan(DepthLayout(14, "full", 1), split, pipeline)


@pytest.mark.parametrize("stage", [0, 2])
def test_no_hop_leads_into_the_first_stage_or_past_the_last(stage: int) -> None:
    with pytest.raises(IndexError):
        WirePlan(DepthLayout(4, "full", 1), (1, 1), 2).hop_into(stage)


def test_a_slice_of_a_large_run_is_112_mib() -> None:
    assert slice_bytes(tokens=8192, batch=1, width=7168, element_bytes=2) == 112 * 2**20
    assert slice_bytes(tokens=8192, batch=1, width=7168, element_bytes=2, sequence_ranks=8) == 14 * 2**20
