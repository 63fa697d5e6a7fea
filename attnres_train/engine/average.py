"""The exponential mean of a rank's masters (`optimizer.average_decay`), in fp32 beside them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def decay_after(updates: int, decay: float) -> float:
    """What the mean keeps of itself after update number `updates` of the run: min(decay, (1 + n) / (10 + n)).

    Of the first weights 2/11 are left after the first update, 1e-6 after about 14, however large `decay` is.
    """
    return min(decay, (1 + updates) / (10 + updates))


class Averages:
    """Means of `masters`, each in a tensor of its own like its master; they begin with what the masters are now."""

    def __init__(self, masters: Sequence[Tensor], decay: float):
        self.decay = decay
        self.means = [master.detach().clone() for master in masters]

    @torch.no_grad()
    def update(self, masters: Sequence[Tensor], updates: int) -> None:
        """After update number `updates`; `masters` are those of the beginning, in their order."""
        if self.means:
            torch._foreach_lerp_(self.means, list(masters), 1.0 - decay_after(updates, self.decay))
