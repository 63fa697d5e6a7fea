"""Intervals by Student's t against published quantiles; compute at equal loss against curves that are known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnres_train.ablate.statistics import (
    OutsideOfCurve,
    compute_advantage,
    compute_at,
    estimate,
    ratio_estimate,
    t_probability,
    t_quantile,
)

# Two-sided, as printed in tables (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2).
PUBLISHED = {
    **{(0.95, 1): 12.706, (0.95, 2): 4.303, (0.95, 3): 3.182, (0.95, 4): 2.776, (0.95, 9): 2.262, (0.95, 10): 2.228},
    **{(0.95, 30): 2.042, (0.95, 100): 1.984, (0.99, 1): 63.657, (0.99, 2): 9.925, (0.99, 7): 3.499, (0.99, 60): 2.660},
    **{(0.90, 1): 6.314, (0.90, 5): 2.015, (0.90, 20): 1.725, (0.998, 3): 10.215},
}
finite = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(("confidence", "freedom"), PUBLISHED, ids=str)
def test_quantiles_are_the_published_ones(confidence: float, freedom: int) -> None:
    assert t_quantile(confidence, freedom) == pytest.approx(PUBLISHED[confidence, freedom], abs=6e-4)


def test_one_degree_of_freedom_is_cauchy_and_many_are_normal() -> None:
    assert t_probability(1.0, 1) == pytest.approx(0.5)
    assert t_probability(math.sqrt(2), 2) == pytest.approx(math.sqrt(0.5))
    assert t_probability(1.3, 100_000) == pytest.approx(math.erf(1.3 / math.sqrt(2)), abs=1e-5)


@given(st.floats(0.01, 0.999), st.integers(1, 200))
def test_a_quantile_has_its_probability(confidence: float, freedom: int) -> None:
    assert t_probability(t_quantile(confidence, freedom), freedom) == pytest.approx(confidence, abs=1e-9)


@pytest.mark.parametrize(("confidence", "freedom"), [(0.0, 3), (1.0, 3), (0.95, 0)])
def test_what_has_no_quantile(confidence: float, freedom: int) -> None:
    with pytest.raises(ValueError):
        t_quantile(confidence, freedom)


def test_an_interval_reckoned_by_hand() -> None:
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0 and found.n == 3
    assert found.high is not None and found.low is not None
    assert found.high - 2.0 == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4) and found.low + found.high == 4.0
    assert estimate([5.0]).low is None and estimate([5.0]).high is None, "one value has no interval"
    with pytest.raises(ValueError):
        estimate([])


@given(st.lists(finite, min_size=2, max_size=8), finite, st.floats(0.1, 10))
def test_intervals_move_and_scale_with_their_values(values: list[float], shift: float, scale: float) -> None:
    one, other = estimate(values), estimate([shift + scale * value for value in values])
    for was, now in ((one.mean, other.mean), (one.low, other.low), (one.high, other.high)):
        assert was is not None and now == pytest.approx(shift + scale * was, rel=1e-6, abs=1e-4)


def test_ratios_are_averaged_by_their_logarithms() -> None:
    found = ratio_estimate([0.5, 2.0])
    assert found.mean == pytest.approx(1.0) and found.low is not None and found.high is not None
    assert found.low * found.high == pytest.approx(1.0)


def power_law(compute: float, scale: float = 1.0) -> float:
    return 3 - 0.2 * math.log(scale * compute)


GRID = [1.0, 2.0, 4.0, 8.0, 16.0]


def test_compute_at_a_loss_is_exact_where_the_loss_falls_with_log_compute() -> None:
    losses = [power_law(compute) for compute in GRID]
    assert compute_at(power_law(5.0), GRID, losses) == pytest.approx(5.0)
    assert compute_at(losses[-1], GRID, losses) == pytest.approx(16.0)
    assert compute_at(losses[2], GRID, losses) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("loss", "words"), [(2.0, "never reached"), (3.0, "before the first"), (3.5, "before the first")]
)
def test_nothing_is_extrapolated(loss: float, words: str) -> None:
    losses = [power_law(compute) for compute in GRID]
    with pytest.raises(OutsideOfCurve, match=words):
        compute_at(loss, GRID, losses)
    with pytest.raises(OutsideOfCurve):
        compute_at(2.0, [], [])


def test_a_loss_that_rose_again_counts_when_it_is_first_reached() -> None:
    assert compute_at(2.0, [1.0, 2.0, 4.0, 8.0], [3.0, 2.0, 2.5, 1.0]) == pytest.approx(2.0)
    assert compute_at(1.5, [1.0, 2.0, 4.0, 8.0], [3.0, 2.0, 2.5, 0.5]) == pytest.approx(4 * 2**0.5)


@given(st.floats(1.05, 3.0))
def test_advantage_of_a_curve_that_needs_less_compute(factor: float) -> None:
    better, reference = [power_law(c, factor) for c in GRID], [power_law(c) for c in GRID]
    assert compute_advantage(GRID, better, GRID, reference) == pytest.approx(factor)
    assert compute_advantage(GRID, reference, GRID, better) == pytest.approx(1 / factor)


def test_advantage_is_not_told_of_what_cannot_be_compared() -> None:
    reference = [power_law(c) for c in GRID]
    for losses in ([1.0] * 5, [*reference[:-1], math.nan], []):
        with pytest.raises(OutsideOfCurve):
            compute_advantage(GRID[: len(losses)], losses, GRID, reference)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=12), st.floats(0.1, 10))
def test_compute_at_lies_on_the_curve(losses: list[float], loss: float) -> None:
    compute = [2.0**n for n in range(len(losses))]
    try:
        found = compute_at(loss, compute, losses)
    except OutsideOfCurve:
        assert losses[0] <= loss or min(losses) > loss
        return
    first = next(i for i, value in enumerate(losses) if value <= loss)
    assert compute[first - 1] * 0.999 <= found <= compute[first] * 1.001
