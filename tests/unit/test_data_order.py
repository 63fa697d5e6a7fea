"""The sample order: a bijection for every size, another one for every seed and epoch, the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres_train.data.order import SampleOrder, derive_key, mix, permute

KEYS = st.integers(0, 2**64 - 1)


@settings(deadline=None)
@given(size=st.integers(1, 3000), key=KEYS)
def test_every_size_and_key_give_a_bijection(size: int, key: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


@pytest.mark.parametrize("size", range(1, 70))
def test_every_small_size_gives_a_bijection(size: int) -> None:
    assert sorted(permute(np.arange(size), size, 5).tolist()) == list(range(size))


@settings(deadline=None)
@given(size=st.integers(1, 2**62), key=KEYS, data=st.data())
def test_huge_sizes_stay_inside_and_distinct_without_being_enumerated(size: int, key: int, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
    images = permute(np.array(indices), size, key).tolist()
    assert len(set(images)) == len(indices)
    assert all(0 <= image < size for image in images)


@settings(deadline=None)
@given(size=st.integers(2, 500), key=KEYS, data=st.data())
def test_an_index_goes_to_the_same_place_alone_or_among_others(size: int, key: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    assert permute(np.array([index]), size, key)[0] == permute(np.arange(size), size, key)[index]


@pytest.mark.parametrize("index", [-1, 5, 6])
def test_an_index_outside_is_an_error(index: int) -> None:
    with pytest.raises(ValueError):
        permute(np.array([index]), 5, 1)


def test_the_order_is_pinned_for_all_platforms() -> None:
    # SplitMix64 with state 0 gives this first output.
    assert int(mix(np.array([0x9E3779B97F4A7C15], dtype=np.uint64))[0]) == 0xE220A8397B1DCDAF
    assert derive_key(1, 0) == 6791897765849424158
    assert permute(np.arange(10), 10, 1).tolist() == [1, 5, 9, 0, 3, 6, 4, 2, 7, 8]
    epochs, samples = SampleOrder(1000, seed=7).locate(np.array([0, 1, 999, 1000, 123_456_789_012]))
    assert epochs.tolist() == [0, 0, 0, 1, 123_456_789]
    assert samples.tolist() == [573, 759, 575, 411, 773]


def test_a_position_is_in_epoch_p_over_n_and_each_epoch_holds_every_sample_once() -> None:
    order = SampleOrder(37, seed=3)
    epochs, samples = order.locate(np.arange(37 * 5))
    assert epochs.tolist() == [epoch for epoch in range(5) for _ in range(37)]
    assert all(sorted(epoch) == list(range(37)) for epoch in samples.reshape(5, 37).tolist())


@settings(deadline=None)
@given(seed=st.integers(0, 2**64), step=st.integers(1, 50), start=st.integers(0, 10_000))
def test_positions_can_be_asked_in_any_grouping(seed: int, step: int, start: int) -> None:
    order = SampleOrder(101, seed)
    whole = order.locate(np.arange(start, start + 3 * step))
    parts = [order.locate(np.arange(start + i * step, start + (i + 1) * step)) for i in range(3)]
    assert np.array_equal(whole[1], np.concatenate([samples for _, samples in parts]))
    assert np.array_equal(whole[0], np.concatenate([epochs for epochs, _ in parts]))


def test_seeds_and_epochs_give_unrelated_orders() -> None:
    size = 2000
    orders = [SampleOrder(size, seed).locate(np.arange(2 * size))[1].reshape(2, size) for seed in range(8)]
    rows = np.concatenate(orders)
    correlations = np.corrcoef(rows) - np.eye(len(rows))
    # 120 pairs of independent shuffles: the standard deviation is 1/sqrt(2000) = 0.022.
    assert np.abs(correlations).max() < 0.1
    agreements = [(a == b).sum() for i, a in enumerate(rows) for b in rows[:i]]
    # Two independent shuffles agree in 1 place on average.
    assert max(agreements) < 10
    assert 0.5 < np.mean(agreements) < 1.5


@pytest.mark.parametrize("size", [50, 64, 1000, 4097])
def test_the_order_looks_shuffled(size: int) -> None:
    trials = [permute(np.arange(size), size, derive_key(11, trial)) for trial in range(200)]
    ranks = np.arange(size)
    correlations = [np.corrcoef(ranks, trial)[0, 1] for trial in trials]
    assert abs(np.mean(correlations)) < 5 / np.sqrt(200 * size)
    assert np.std(correlations) < 1.3 / np.sqrt(size)
    neighbours = [np.corrcoef(trial[:-1], trial[1:])[0, 1] for trial in trials]
    assert abs(np.mean(neighbours)) < 5 / np.sqrt(200 * size) + 1.5 / size
    fixed_points = np.mean([(trial == ranks).sum() for trial in trials])
    assert 0.5 < fixed_points < 1.5


@pytest.mark.parametrize("size", [3, 4, 5])
def test_small_sizes_reach_every_permutation(size: int) -> None:
    total = int(np.prod(np.arange(1, size + 1)))
    seen = {tuple(permute(np.arange(size), size, derive_key(1, key)).tolist()) for key in range(12 * total)}
    assert len(seen) == total


@pytest.mark.parametrize("num_samples, seed", [(0, 1), (5, -1)])
def test_impossible_orders_are_errors(num_samples: int, seed: int) -> None:
    with pytest.raises(ValueError):
        SampleOrder(num_samples, seed)


def test_a_negative_position_is_an_error() -> None:
    with pytest.raises(ValueError):
        SampleOrder(5, 1).locate(np.array([-1]))
