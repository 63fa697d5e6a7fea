"""The exponential mean of weights against its formula, however the weights are cut."""

from __future__ import annotations

import pytest
import torch

from attnres_train.engine.average import Averages, decay_after


@pytest.mark.parametrize(
    ("updates", "decay", "expected"),
    [(1, 0.999, 2 / 11), (2, 0.999, 3 / 12), (90, 0.999, 0.91), (100_000, 0.999, 0.999), (1, 0.1, 0.1)],
)
def test_the_decay_grows_to_what_was_asked_for(updates: int, decay: float, expected: float) -> None:
    assert decay_after(updates, decay) == pytest.approx(expected, rel=1e-12)


def test_a_mean_is_the_recursion_in_float64() -> None:
    generator = torch.Generator().manual_seed(3)
    master = torch.randn(1000, generator=generator)
    averages, expected = Averages([master], 0.8), master.double()
    for update in range(1, 40):
        master.add_(torch.randn(1000, generator=generator))
        averages.update([master], update)
        keep = min(0.8, (1 + update) / (10 + update))
        expected = keep * expected + (1 - keep) * master.double()
    torch.testing.assert_close(averages.means[0].double(), expected, rtol=0, atol=2e-6)


def test_it_begins_with_the_weights_and_is_none_of_them() -> None:
    master = torch.nn.Parameter(torch.ones(3))
    averages = Averages([master], 0.9)
    assert averages.means[0].equal(master) and not averages.means[0].requires_grad
    with torch.no_grad():
        master.add_(1)
    assert averages.means[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("update", [1, 7, 500])
def test_the_bits_do_not_depend_on_how_the_weights_are_cut(update: int) -> None:
    generator = torch.Generator().manual_seed(4)
    before, after = (torch.randn(1003, generator=generator) for _ in range(2))
    whole = Averages([before], 0.99)
    whole.update([after], update)
    for length in (1, 7, 64, 501):
        cut = Averages(before.split(length), 0.99)
        cut.update(after.split(length), update)
        assert torch.cat(cut.means).equal(whole.means[0])


def test_a_rank_that_updates_nothing_has_no_mean() -> None:
    Averages([], 0.9).update([], 1)
