"""What travels between pipeline stages and what ranks keep, against a walk of one micro-batch by plain sets.

The walk knows the layout and the hops, nothing of how the plan was made.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnres_train.depth.layout import DepthLayout
from attnres_train.parallel.split import balanced_split
from attnres_train.parallel.wire import Hop, WirePlan


@st.composite
def plans(draw: st.DrawFn, small: bool = False) -> WirePlan:
    """Up to 64 stages (`small`: 7, on several ranks); any may have no layer, the first and the last too."""
    pipeline = draw(st.integers(2, 4) if small else st.integers(1, 16))
    stages = pipeline * draw(st.integers(1, min(6, (7 if small else 64) // pipeline)))
    most = 2 if small or stages > 16 else 4
    split = draw(st.lists(st.integers(0, most), min_size=stages, max_size=stages))
    split[draw(st.integers(0, stages - 1))] += 1
    mode = draw(st.sampled_from(["block", "full", "standard"]))
    size = {"standard": None, "full": 1, "block": draw(st.integers(1, 9))}[mode]
    window = None if size is None else draw(st.none() | st.integers(1, 5))
    layout = DepthLayout(2 * sum(split), mode, size, window)  # type: ignore[arg-type]
    return WirePlan(layout, tuple(split), pipeline, stages // pipeline)


def variants(plan: WirePlan) -> list[WirePlan]:
    """Whole prefix, exact gradients, and the cache where it is allowed."""
    shared = [] if plan.layout.has_sources and 0 in plan.layers_per_stage[1:-1] else [replace(plan, cache=True)]
    return [plan, *shared, replace(plan, cache=True, exact_gradients=True)]


def ranks(plan: WirePlan) -> list[int]:
    """The rank of every stage, by walking along the ranks."""
    return list(range(plan.pipeline)) * plan.virtual


def readers(plan: WirePlan, stage: int) -> list[int]:
    """Sublayers of `stage`, and on the last one the head."""
    first, last = 2 * sum(plan.layers_per_stage[:stage]), stage == plan.num_stages - 1
    return list(range(first, first + 2 * plan.layers_per_stage[stage] + last))


def reads(plan: WirePlan, stage: int) -> set[int]:
    return {source for reader in readers(plan, stage) for source in plan.layout.reads(reader).sources}


def made(plan: WirePlan, stage: int) -> list[int]:
    """Sources that `stage` completes; the embedding is the first stage's."""
    layout = plan.layout
    sublayers = [reader for reader in readers(plan, stage) if reader < layout.num_sublayers]
    completed = [layout.sources_before(s + 1) - 1 for s in sublayers if layout.completes_block(s)]
    return [0, *completed] if stage == 0 and layout.has_sources else completed


def walk_forward(plan: WirePlan, hops: Sequence[Hop]) -> None:
    """Every stage has what it reads and hands on; with the cache nothing comes to a rank twice."""
    rank, layout = ranks(plan), plan.layout
    had: dict[int, set[int]] = defaultdict(set)
    here: set[int] = set()
    for stage in range(plan.num_stages):
        before, here = here, set(plan.known_on(stage))
        assert here <= had[rank[stage]], f"rank {rank[stage]} keeps for stage {stage} what it never had"
        if stage:
            hop = hops[stage - 1]
            assert set(hop.sources) | set(hop.returned) <= before, f"stage {stage - 1} has not what {hop} takes"
            again = set(hop.sources) & had[rank[stage]] if plan.cache else set(hop.sources) & here
            assert not again and len(set(hop.sources)) == len(hop.sources), f"{hop} brings {again} again"
            here |= set(hop.sources)
            assert set(hop.returned) <= here, f"{hop} returns what stage {stage} has not"
        here |= {0} if stage == 0 and layout.has_sources else set()
        for reader in readers(plan, stage):
            assert set(layout.reads(reader).sources) <= here, f"reader {reader} on stage {stage} misses a source"
            if reader < layout.num_sublayers and layout.completes_block(reader):
                here.add(layout.sources_before(reader + 1) - 1)
        had[rank[stage]] |= here


def walk_backward(plan: WirePlan, hops: Sequence[Hop]) -> tuple[dict[int, list[int]], Counter[tuple[int, int]]]:
    """The readers whose gradients come home to each source's maker, in order; the deposits by stage and source.

    With the cache the stages of a rank share a buffer, but not where sums must keep their order.
    """
    buffer = ranks(plan) if plan.cache and not plan.exact_gradients else range(plan.num_stages)
    home, deposits = {}, Counter[tuple[int, int]]()
    buffers: dict[tuple[int, int], list[int]] = defaultdict(list)
    returning: dict[int, list[int]] = {}
    for stage in reversed(range(plan.num_stages)):
        arriving = [*returning.items()]
        arriving += [(s, [r]) for r in reversed(readers(plan, stage)) for s in plan.layout.reads(r).sources]
        for source, tokens in arriving:
            buffers[buffer[stage], source] += tokens
            deposits[stage, source] += 1
        returned = hops[stage - 1].returned if stage else ()
        returning = {source: buffers.pop((buffer[stage], source), []) for source in returned}
        assert len(returning) == len(returned) and all(returning.values()), f"stage {stage} returns nothing"
        home |= {source: buffers.pop((buffer[stage], source), []) for source in made(plan, stage)}
    assert not buffers, f"gradients that nobody took: {dict(buffers)}"
    return home, deposits


def check(plan: WirePlan, hops: Sequence[Hop]) -> None:
    """Forward, and every reader's gradient home exactly once; in one process's order where that is promised."""
    walk_forward(plan, hops)
    home, deposits = walk_backward(plan, hops)
    everyone = range(plan.layout.num_sublayers + 1)
    for source in range(plan.layout.num_sources):
        expected = [reader for reader in reversed(everyone) if source in plan.layout.reads(reader).sources]
        assert Counter(home[source]) == Counter(expected), f"source {source} got {home[source]}"
        if plan.exact_gradients or not plan.cache:
            assert home[source] == expected, f"source {source} got them in the order {home[source]}"
    rank, shared = ranks(plan), plan.cache and not plan.exact_gradients
    for stage in range(plan.num_stages):
        later = [s for s in range(stage, plan.num_stages) if rank[s] == rank[stage] and (shared or s == stage)]
        here = {*plan.known_on(stage), *made(plan, stage), *(hops[stage - 1].sources if stage else ())}
        for source in range(plan.layout.num_sources):
            assert plan.consumers(stage, source) == deposits[stage, source]
            assert source not in here or plan.deposits_by(stage, source) == sum(deposits[s, source] for s in later)


@settings(max_examples=100)
@given(plans())
def test_every_read_is_reached_and_every_gradient_comes_home_once(plan: WirePlan) -> None:
    for variant in variants(plan):
        check(variant, variant.hops())


@settings(max_examples=100)
@given(plans())
def test_all_that_travels_is_used_or_travels_on(plan: WirePlan) -> None:
    """But for exact gradients, whose sums need a leaf on every stage that they pass."""
    for variant in (each for each in variants(plan) if not each.exact_gradients):
        rank, hops = ranks(variant), variant.hops()
        for hop in hops:
            later = [s for s in range(hop.to_stage, len(rank)) if rank[s] == rank[hop.to_stage]]
            rest = later if variant.cache else later[:1]
            on = [hops[stage].sources for stage in rest if stage < len(hops)]
            assert set(hop.sources) <= set[int]().union(*on, *(reads(variant, stage) for stage in rest))


@settings(max_examples=100)
@given(plans())
def test_a_cached_hop_is_part_of_the_whole_prefix(plan: WirePlan) -> None:
    whole, *cached, exact = variants(plan)
    for everything, ordered in zip(whole.hops(), exact.hops(), strict=True):
        assert everything.returned == everything.sources == ordered.returned
        assert set(ordered.sources) <= set(everything.sources)
        assert everything.partial == ordered.partial
    assert exact.slices_total <= whole.slices_total == exact.slices_back_total
    for shared in cached:
        assert [hop.sources for hop in shared.hops()] == [hop.sources for hop in exact.hops()]
        assert all(hop.returned == hop.sources for hop in shared.hops())


@settings(max_examples=100)
@given(plans())
def test_a_rank_keeps_a_source_for_exactly_the_later_stages_that_use_it(plan: WirePlan) -> None:
    for variant in variants(plan):
        rank, hops = ranks(variant), variant.hops()
        for mine in range(variant.pipeline):
            stages = [stage for stage in range(len(rank)) if rank[stage] == mine]
            assert variant.stages_of(mine) == tuple(stages)
            opened = [(n, s) for s in stages if s for n in hops[s - 1].sources]
            opened += [(n, s) for s in stages for n in made(variant, s)]
            assert sorted((e.number, e.opened) for e in variant.kept_on(mine)) == sorted(opened)
            uses = {s: reads(variant, s) | set(hops[s].returned if s < len(hops) else ()) for s in stages}
            for entry in variant.kept_on(mine):
                later = [s for s in stages if variant.cache and s > entry.opened and entry.number in uses[s]]
                assert entry.readers == tuple(later)


def damaged(hop: Hop, source: int, kind: str) -> Hop:
    """`hop` with one source too few or one too many."""
    sent = tuple(other for other in hop.sources if other != source)
    back = tuple(other for other in hop.returned if other != source)
    return {
        "not sent": replace(hop, sources=sent),
        "not returned": replace(hop, returned=back),
        "neither": replace(hop, sources=sent, returned=back),
        "sent again": replace(hop, sources=(*hop.sources, source)),
        "returned again": replace(hop, returned=(*hop.returned, source)),
    }[kind]


@pytest.mark.parametrize("kind", ["not sent", "not returned", "neither", "sent again", "returned again"])
def test_the_walk_sees_one_source_too_few_or_too_many(kind: str) -> None:
    @settings(max_examples=40)
    @given(plans(), st.data())
    def spoil(plan: WirePlan, data: st.DataObject) -> None:
        variant = data.draw(st.sampled_from(variants(plan)))
        hops = list(variant.hops())
        # What a rank has had is in `known_on`; what a hop brings is in the hop.
        choice = [(hop, n) for hop in hops for n in hop.sources]
        if kind == "sent again":
            choice += [(hop, n) for hop in hops for n in variant.known_on(hop.to_stage)]
        assume(choice)
        hop, source = data.draw(st.sampled_from(choice))
        hops[hop.from_stage] = damaged(hop, source, kind)
        with pytest.raises(AssertionError):
            check(variant, hops)

    spoil()


@given(plans())
def test_hops_chain_and_totals_are_theirs(plan: WirePlan) -> None:
    hops, rank = plan.hops(), ranks(plan)
    assert [(hop.from_stage, hop.to_stage) for hop in hops] == [(s, s + 1) for s in range(plan.num_stages - 1)]
    assert [plan.rank_of(stage) for stage in range(plan.num_stages)] == rank
    for hop in hops:
        assert hop.partial == plan.layout.partial_before(2 * sum(plan.layers_per_stage[: hop.to_stage]))
        assert hop.slices == len(hop.sources) + hop.partial
    slices = [hop.slices for hop in hops]
    assert (plan.slices_total, plan.slices_max) == (sum(slices), max(slices, default=0))
    assert plan.slices_standard == plan.num_stages - 1


# layers, layers a block, P, V: slices of the whole prefix and of its widest hop, the same cached, a published count.
PUBLISHED = {
    (27, 3, 3, 3): (44, 9, 17, 3, 23),
    (32, 4, 4, 2): (35, 8, 21, 4, 25),
    (48, 6, 8, 2): (79, 9, 55, 5, 59),
    (93, 12, 4, 4): (79, 9, 31, 3, 37),
    (93, 12, 8, 2): (79, 9, 55, 5, 59),
    (93, 12, 8, 4): (167, 9, 77, 3, 83),
    (93, 12, 8, 1): (35, 8, 35, 8, 35),
}


@pytest.mark.parametrize("sizes", PUBLISHED, ids=str)
def test_slices_of_published_layouts_under_a_near_even_split(sizes: tuple[int, int, int, int]) -> None:
    """The published count is of what is new since the receiver's last visit: a block returns to its maker once."""
    (layers, block, pipeline, virtual), (*expected, published) = sizes, PUBLISHED[sizes]
    layout, stages = DepthLayout(2 * layers, "block", 2 * block), pipeline * virtual
    plan = WirePlan(layout, balanced_split(layers, stages), pipeline, virtual)
    cached = replace(plan, cache=True)
    assert [plan.slices_total, plan.slices_max, cached.slices_total, cached.slices_max] == expected
    assert plan.slices_standard == cached.slices_standard == stages - 1
    later = [set[int]().union(*(reads(plan, s) for s in range(m + pipeline, stages, pipeline))) for m in range(stages)]
    to_their_maker = [n for maker in range(stages) for n in made(plan, maker) if n > 0 and n in later[maker]]
    assert cached.slices_total + len(to_their_maker) == published


@given(st.integers(2, 16), st.integers(1, 6), st.integers(1, 3))
def test_closed_forms_where_every_stage_is_one_block(pipeline: int, virtual: int, layers: int) -> None:
    """Whole prefix: hop s brings sources 0 to s. Cached: a block crosses to every rank but its maker's, then stops."""
    stages = pipeline * virtual
    plan = WirePlan(DepthLayout(2 * layers * stages, "block", 2 * layers), (layers,) * stages, pipeline, virtual)
    cached = replace(plan, cache=True)
    assert (plan.slices_total, plan.slices_max) == (sum(s + 1 for s in range(1, stages)), stages)
    crossings = [min(pipeline - 1, stages - 1 - maker) for maker in (0, *range(stages))]  # the embedding, the blocks
    assert (cached.slices_total, cached.slices_max) == (sum(crossings), pipeline)
    assert virtual > 1 or cached.slices_total == plan.slices_total


def test_hops_by_hand() -> None:
    standard, block, empty_first = DepthLayout(8, "standard", None), DepthLayout(8, "block", 3), (0, 2)
    assert WirePlan(standard, (1, 1, 1, 1), 4).hops() == tuple(Hop(s, s + 1, (), True, ()) for s in range(3))
    assert WirePlan(block, (2, 2), 2).hops() == (Hop(0, 1, (0, 1), True, (0, 1)),), "a boundary inside a block"
    assert WirePlan(DepthLayout(4, "block", 2), empty_first, 2).hops() == (Hop(0, 1, (0,), False, (0,)),)
    assert WirePlan(DepthLayout(4, "standard", None), empty_first, 2).hops() == (Hop(0, 1, (), True, ()),)


def test_the_picture_in_the_module() -> None:
    plan = WirePlan(DepthLayout(8, "block", 2), (1, 1, 1, 1), pipeline=2, virtual=2)
    assert [hop.sources for hop in plan.hops()] == [(0, 1), (0, 1, 2), (0, 1, 2, 3)]
    assert [hop.sources for hop in replace(plan, cache=True).hops()] == [(0, 1), (2,), (3,)]
    assert [plan.rank_of(stage) for stage in range(4)] == [0, 1, 0, 1]


def test_a_split_that_does_not_fit_is_refused() -> None:
    layout = DepthLayout(14, "full", 1)
    with pytest.raises(ValueError, match="2 stages in the split, 3 in the grid"):
        WirePlan(layout, (2, 2), 3)
    with pytest.raises(ValueError, match="holds 6 layers, the layout 7"):
        WirePlan(layout, (3, 3), 2)


@pytest.mark.parametrize("stage", [0, 2])
def test_no_hop_leads_into_the_first_stage_or_past_the_last(stage: int) -> None:
    with pytest.raises(IndexError):
        WirePlan(DepthLayout(4, "full", 1), (1, 1), 2).hop_into(stage)


@pytest.mark.parametrize("exact", [False, True])
def test_gradients_of_kept_sources_wait_for_the_stage_that_opened_them_and_no_longer(exact: bool) -> None:
    """Two ranks of two stages: those that stages 2 and 3 read wait until stages 0 and 1 have run backward."""
    plan = WirePlan(DepthLayout(8, "full", 1), (1, 1, 1, 1), 2, 2, cache=True, exact_gradients=exact)
    read_later = [len(plan.known_on(stage)) for stage in (2, 3)]
    assert min(read_later) > 0
    assert [plan.owed_slices(stage) for stage in range(4)] == [0, 0, *([0, 0] if exact else read_later)]
