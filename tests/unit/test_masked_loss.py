"""What the schedule and the report are told of a micro-batch's losses."""

from __future__ import annotations

import torch

from attnres_train.parallel.pipeline import _masked_loss


def test_only_counted_tokens_count_and_sums_are_no_means() -> None:
    mask_BT = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    losses_BT = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
    total, tokens, (by_sample, counts) = _masked_loss(mask_BT, losses_BT)
    assert (total.item(), tokens.item(), tokens.dtype) == (11.0, 3, torch.int32)
    assert (by_sample.tolist(), counts.tolist()) == ([3.0, 8.0], [2.0, 1.0])
