"""Layers to pipeline stages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres_train.model.config import ModelConfig
from attnres_train.parallel.split import balanced_split, head_cost_in_layers, rank_and_chunk, stage_layers

sizes = st.tuples(st.integers(1, 100), st.integers(1, 40)).filter(lambda s: s[0] >= s[1])


@settings(deadline=None)
@given(sizes, st.floats(0, 12))
def test_every_layer_is_on_exactly_one_stage_and_none_is_empty(size: tuple[int, int], head_cost: float) -> None:
    layers, stages = size
    split = balanced_split(layers, stages, head_cost)
    held = [layer for stage in range(stages) for layer in stage_layers(split, stage)]
    assert held == list(range(layers))
    assert len(split) == stages and min(split) >= 1


@settings(deadline=None)
@given(sizes)
def test_without_a_head_the_split_is_near_even_with_the_larger_stages_first(size: tuple[int, int]) -> None:
    layers, stages = size
    split = balanced_split(layers, stages)
    assert max(split) - min(split) <= 1
    assert list(split) == sorted(split, reverse=True)


@settings(deadline=None)
@given(st.integers(1, 9).flatmap(lambda s: st.tuples(st.integers(s, 14), st.just(s))), st.floats(0, 6))
def test_no_other_split_has_a_cheaper_dearest_stage(size: tuple[int, int], head_cost: float) -> None:
    layers, stages = size
    split = balanced_split(layers, stages, head_cost)
    dearest = max(split[-1] + head_cost, *split)
    # With k layers on the last stage, the largest other holds at least ceil((layers - k) / (stages - 1)).
    if stages > 1:
        cheapest = min(
            max(last + head_cost, -(-(layers - last) // (stages - 1))) for last in range(1, layers - stages + 2)
        )
        assert dearest == pytest.approx(cheapest)


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [(7, 2, (4, 3)), (30, 4, (8, 8, 7, 7)), (80, 32, (3,) * 16 + (2,) * 16), (1, 1, (1,))],
)
def test_layers_that_do_not_divide_are_all_there(layers: int, stages: int, split: tuple[int, ...]) -> None:
    assert balanced_split(layers, stages) == split


def test_a_dear_head_takes_layers_off_the_last_stage() -> None:
    assert balanced_split(12, 3, head_cost_layers=3.0) == (5, 5, 2)


def test_fewer_layers_than_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="1 layers cannot give each of 2 stages one"):
        balanced_split(1, 2)


def test_stage_layers_of_stated_counts_may_be_empty() -> None:
    assert [list(stage_layers((2, 0, 1), stage)) for stage in range(3)] == [[0, 1], [], [2]]


def test_stages_go_round_the_ranks_once_a_chunk() -> None:
    places = [rank_and_chunk(stage, pipeline=3) for stage in range(6)]
    assert places == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]


def test_head_cost_is_its_flops_over_a_layers() -> None:
    model = ModelConfig(num_layers=2, hidden_size=8, ffn_hidden_size=16, num_attention_heads=2)
    layer = 2 * (4 * 8 * 8 + 3 * 8 * 16) + 2 * 8 * 10
    assert head_cost_in_layers(model, padded_vocabulary=128, sequence_length=10) == 2 * 128 * 8 / layer
