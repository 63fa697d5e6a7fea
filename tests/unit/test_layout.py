"""What the depth layout says each sublayer and the head read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres_train.depth.config import ResidualConfig
from attnres_train.depth.layout import DepthLayout, Reads

layouts = st.one_of(
    st.builds(lambda n: DepthLayout(n, "standard", None), st.integers(1, 60)),
    st.builds(lambda n: DepthLayout(n, "full", 1), st.integers(1, 60)),
    st.builds(lambda n, size: DepthLayout(n, "block", size), st.integers(1, 60), st.integers(1, 70)),
    st.builds(
        lambda n, size, window: DepthLayout(n, "block", size, window),
        st.integers(1, 60),
        st.integers(1, 9),
        st.integers(1, 12),
    ),
)


def simulate(layout: DepthLayout) -> list[Reads]:
    """Run the definition: what stands in the bank, and whether a partial does, at every reader."""
    bank, partial = (0, True) if layout.block_size is None else (1, False)

    def seen() -> Reads:
        window = bank if layout.window is None else layout.window
        kept = [source for source in range(bank) if source == 0 or source >= bank - window]
        return Reads(tuple(kept), partial)

    reads = []
    for sublayer in range(layout.num_sublayers):
        reads.append(seen())
        partial = True
        if layout.block_size is not None and (sublayer + 1) % layout.block_size == 0:
            bank, partial = bank + 1, False
    return [*reads, seen()]


@settings(deadline=None)
@given(layouts)
def test_reads_follow_the_definition_run_step_by_step(layout: DepthLayout) -> None:
    assert [layout.reads(i) for i in range(layout.num_sublayers)] == simulate(layout)[:-1]
    assert layout.head_reads() == simulate(layout)[-1]


@settings(deadline=None)
@given(layouts)
def test_a_block_completes_exactly_where_a_source_appears(layout: DepthLayout) -> None:
    for sublayer in range(layout.num_sublayers):
        grows = layout.sources_before(sublayer + 1) - layout.sources_before(sublayer)
        assert layout.completes_block(sublayer) == (grows == 1)


@pytest.mark.parametrize(
    ("layers", "block_size", "head_sources"),
    [(16, 4, 9), (27, 6, 10), (93, 24, 9)],
    ids=["paper", "Kimi Linear", "K3 with a short last block"],
)
def test_the_head_reads_the_published_number_of_sources(layers: int, block_size: int, head_sources: int) -> None:
    assert DepthLayout(2 * layers, "block", block_size).head_reads().count == head_sources


def test_full_is_block_of_one_sublayer() -> None:
    full, block = DepthLayout(10, "full", 1), DepthLayout(10, "block", 1)
    assert [full.reads(i) for i in range(10)] == [block.reads(i) for i in range(10)]
    assert full.reads(7) == Reads(tuple(range(8)), partial=False)


def test_an_odd_block_size_may_split_a_transformer_layer() -> None:
    layout = DepthLayout(6, "block", 3)
    assert [layout.reads(i) for i in (2, 3, 4)] == [Reads((0,), True), Reads((0, 1), False), Reads((0, 1), True)]


def test_standard_has_no_sources_and_always_a_partial() -> None:
    layout = DepthLayout(4, "standard", None)
    assert not layout.has_sources
    assert {layout.reads(i) for i in range(4)} == {Reads((), True)}
    assert layout.head_reads() == Reads((), True)


@pytest.mark.parametrize(
    ("sublayers", "mode", "size"),
    [(0, "full", 1), (4, "standard", 2), (4, "block", None), (4, "block", 0), (4, "full", 2)],
)
def test_sizes_that_make_no_layout_are_refused(sublayers: int, mode: str, size: int | None) -> None:
    with pytest.raises(ValueError, match=r"sublayer|block_size"):
        DepthLayout(sublayers, mode, size)  # type: ignore[arg-type]


@pytest.mark.parametrize("sublayer", [-1, 5])
def test_a_sublayer_outside_the_model_is_an_index_error(sublayer: int) -> None:
    with pytest.raises(IndexError):
        DepthLayout(4, "full", 1).reads(sublayer)


def test_a_layout_of_a_configuration_counts_two_sublayers_a_layer() -> None:
    assert DepthLayout.of(ResidualConfig(mode="full"), 3) == DepthLayout(6, "full", 1)
    assert DepthLayout.of(ResidualConfig(mode="block", block_size=4), 3) == DepthLayout(6, "block", 4)
    assert DepthLayout.of(ResidualConfig(mode="standard"), 3) == DepthLayout(6, "standard", None)


def test_spans_to_be_made_again_end_where_blocks_do() -> None:
    layout = DepthLayout(16, "block", 6)
    assert layout.spans(range(8), "block") == [range(0, 3), range(3, 6), range(6, 8)]
    assert layout.spans(range(2, 5), "block") == [range(2, 3), range(3, 5)]
    assert layout.spans(range(2, 5), "layer") == [range(2, 3), range(3, 4), range(4, 5)]
    assert layout.spans(range(8), "none") == layout.spans(range(8), "depth") == []
    assert layout.spans(range(3, 3), "block") == []
    odd = DepthLayout(8, "block", 3)
    assert odd.spans(range(4), "block") == [range(0, 2), range(2, 3), range(3, 4)]
    assert DepthLayout(8, "full", 1).spans(range(4), "block") == DepthLayout(8, "full", 1).spans(range(4), "layer")
