"""The blend: every source gets its due, at every moment, and any draw can be asked alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres_train.data.blend import MAX_PERIOD, Blend, period_counts
from attnres_train.errors import Refused

WEIGHTS = st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any)


def blend_of(*weights: float) -> Blend:
    return Blend({f"source{i}": weight for i, weight in enumerate(weights)})


@pytest.mark.parametrize(
    "weights, total, due",
    [
        ((0.999, 0.001), 1000, (999, 1)),
        ((3, 1), 400, (300, 100)),
        ((1, 0), 400, (400, 0)),
        ((0.7, 0.2, 0.1), 1000, (700, 200, 100)),
        ((1 / 3, 2 / 3), 3000, (1000, 2000)),
    ],
)
def test_ordinary_and_extreme_weights_get_their_due(
    weights: tuple[float, ...], total: int, due: tuple[int, ...]
) -> None:
    blend = blend_of(*weights)
    sources, _ = blend.locate(np.arange(total))
    counts = np.bincount(sources, minlength=len(weights)).tolist()
    assert all(abs(count - wanted) <= 1 for count, wanted in zip(counts, due, strict=True))
    assert blend.draws(total) == tuple(counts)


def test_decimal_weights_have_an_exact_period() -> None:
    assert period_counts({"a": 0.999, "b": 0.001}) == (999, 1)
    assert period_counts({"a": 3, "b": 1.0}) == (3, 1)
    assert period_counts({"a": 0.1, "b": 0.2}) == (1, 2)
    assert period_counts({"a": 7.0}) == (1,)


def test_weights_without_a_short_period_are_rounded_to_one_draw() -> None:
    weights = {"a": math.pi, "b": math.e, "c": 1e-5}
    counts = period_counts(weights)
    assert sum(counts) == MAX_PERIOD
    for weight, count in zip(weights.values(), counts, strict=True):
        assert abs(count - MAX_PERIOD * weight / sum(weights.values())) < 1


@settings(deadline=None)
@given(weights=WEIGHTS, total=st.integers(1, 800))
def test_each_source_is_near_its_due_at_every_moment(weights: list[int], total: int) -> None:
    sources, _ = blend_of(*weights).locate(np.arange(total))
    used = sum(weight > 0 for weight in weights)
    for source, weight in enumerate(weights):
        share = weight / sum(weights)
        drawn = np.cumsum(sources == source)
        bound = 0.5 + share * used / 2 if weight else 0
        assert np.abs(drawn - share * np.arange(1, total + 1)).max() <= bound + 1e-9


@settings(deadline=None)
@given(weights=WEIGHTS, start=st.integers(0, 10**12))
def test_the_draws_of_a_source_are_numbered_without_gaps(weights: list[int], start: int) -> None:
    blend = blend_of(*weights)
    sources, ordinals = blend.locate(np.arange(start, start + 300))
    before = blend.draws(start)
    for source in range(len(weights)):
        drawn = ordinals[sources == source].tolist()
        assert drawn == list(range(before[source], before[source] + len(drawn)))


@settings(deadline=None)
@given(weights=WEIGHTS, position=st.integers(1, 10**15))
def test_a_draw_asked_alone_is_the_draw_of_the_sequence(weights: list[int], position: int) -> None:
    blend = blend_of(*weights)
    alone = [found.tolist() for found in blend.locate(np.array([position]))]
    among = [found[1:2].tolist() for found in blend.locate(np.arange(position - 1, position + 2))]
    assert alone == among


@pytest.mark.parametrize("weights", [(1, -0.5), (math.nan, 1), (math.inf, 1), (0, 0), ()])
def test_impossible_weights_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(Refused):
        blend_of(*weights)


def test_a_weight_too_small_to_be_drawn_is_refused_naming_the_source() -> None:
    with pytest.raises(Refused, match="source1.*less than one draw"):
        blend_of(1, 1e-9)


def test_a_negative_position_is_an_error() -> None:
    with pytest.raises(ValueError):
        blend_of(1, 2).locate(np.array([-1]))
