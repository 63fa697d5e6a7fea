"""The loss of the head is fp32 at least, whatever the weights are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.nn import functional as F

from attnres_train.model.head import Head


@pytest.mark.parametrize(("dtype", "loss"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_losses_are_of_logits_in_fp32(dtype: torch.dtype, loss: torch.dtype) -> None:
    """Tokens first in the logits, samples first in labels and losses."""
    logits_TBV = torch.randn(5, 2, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
    labels_BT = torch.arange(10).view(2, 5) % 7
    stands_in: Any = SimpleNamespace(logits=lambda *_: logits_TBV, tensor_group=SimpleNamespace(size=lambda: 1))
    losses_BT = Head.forward(stands_in, cast(Any, None), labels_BT, None)
    wide = logits_TBV.to(loss)
    expected = [[F.cross_entropy(wide[t, b][None], labels_BT[b, t][None]) for t in range(5)] for b in range(2)]
    assert losses_BT.dtype == loss
    torch.testing.assert_close(losses_BT, torch.tensor(expected, dtype=loss))
