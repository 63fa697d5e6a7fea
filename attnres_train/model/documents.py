"""The documents of a micro-batch, for attention that stays inside them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Documents:
    """Lengths of the documents of a micro-batch, all samples one after the other; none goes over into the next sample.

    Every layer on every stage is given the same; lengths are known on the host, so that no layer waits for the device.
    """

    lengths: tuple[int, ...]
    bounds: Tensor
    """int32, on the device of the model: where each document begins, and where the last one ends."""

    @property
    def longest(self) -> int:
        return max(self.lengths)

    @classmethod
    def of(cls, segments_BT: Tensor) -> Documents:
        """From the number of every token's document in its sample, on the host, where the bounds are too."""
        begins_BT = torch.ones_like(segments_BT, dtype=torch.bool)
        begins_BT[:, 1:] = segments_BT[:, 1:] != segments_BT[:, :-1]
        (starts,) = begins_BT.flatten().nonzero(as_tuple=True)
        bounds = torch.cat([starts, starts.new_tensor([segments_BT.numel()])])
        return cls(tuple(bounds.diff().tolist()), bounds.to(torch.int32))
