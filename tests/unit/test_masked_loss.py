"""What the schedule and the report are told of a micro-batch's losses."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnres_train.parallel.pipeline import _masked_loss, _totals
from attnres_train.progress import LossSum


def test_only_counted_tokens_count_and_sums_are_no_means() -> None:
    mask_BT = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    losses_BT = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
    total, tokens, (by_sample, counts) = _masked_loss(1, mask_BT, losses_BT)
    assert (total.item(), tokens.item(), tokens.dtype) == (11.0, 3, torch.int32)
    assert (by_sample.tolist(), counts.tolist()) == ([[3.0], [8.0]], [[2.0], [1.0]])
    _, _, (by_stretch, counts) = _masked_loss(3, mask_BT, losses_BT)
    assert by_stretch.tolist() == [[1.0, 2.0, 0.0], [8.0, 0.0, 0.0]] and counts.tolist() == mask_BT.tolist()


def _report(losses: list[float], counts: list[float]) -> tuple[Tensor, Tensor]:
    """Of two samples, the window as one stretch."""
    return torch.tensor(losses)[:, None], torch.tensor(counts)[:, None]


def test_stretches_are_those_of_all_samples_together() -> None:
    losses, counts = torch.tensor([[1.0, 2.0], [4.0, 8.0]]), torch.tensor([[1.0, 1.0], [0.0, 2.0]])
    totals = _totals([(losses, counts), (losses, counts)])
    assert totals.positions == (LossSum(10.0, 2), LossSum(20.0, 6)) and totals.whole == LossSum(30.0, 8)
    assert totals.samples[:2] == (LossSum(3.0, 2), LossSum(12.0, 2))


def test_totals_are_exact_and_name_every_micro_batch_with_a_bad_sample() -> None:
    nan, inf = float("nan"), float("inf")
    rows = [([257.0, 1.0], [257.0, 3.0]), ([nan, 1.0], [2.0, 2.0]), ([1.0, 2.0], [2.0, 2.0]), ([3.0, inf], [2.0, 1.0])]
    totals = _totals([_report(*row) for row in rows])
    assert totals.not_finite == (1, 3)
    assert totals.samples[0] == LossSum(257.0, 257) and totals.samples[5] == LossSum(2.0, 2)
    assert totals.whole.tokens == 257 + 3 + 2 + 2 + 2 + 2 + 2 + 1
    whole = _totals([_report(*rows[0]), _report(*rows[2])])
    assert whole.whole == LossSum(261.0, 264) and whole.positions == ()
    assert math.isnan(LossSum().mean) and LossSum(3.0, 2).mean == 1.5
