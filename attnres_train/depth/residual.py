"""What a reader takes from the history: the residual modes behind one small interface.

A reader is a module from `History` to the `[T, B, D]` input of a branch. In every mode the same layers run the
same code; the mode decides which sources exist (`DepthLayout`) and which reader looks at them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres_train.depth.aggregation import Backend, aggregate
from attnres_train.depth.history import History
from attnres_train.depth.layout import DepthLayout


class ResidualStream(nn.Module):
    """The standard residual: the reader sees the running sum of everything before it."""

    def forward(self, history: History) -> Tensor:
        assert history.partial is not None, "the standard residual always has a partial"
        return history.partial


class DepthAttention(nn.Module):
    """Attention over depth: one learned query and key gain, fp32 whatever the model's dtype.

    The query starts at exactly zero, so the reader starts as the mean of its sources; behind a norm that is
    the standard residual (exactly, up to the norm's eps).
    """

    def __init__(self, hidden_size: int, eps: float, backend: Backend, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.eps = eps
        self.backend: Backend = backend
        self.query = nn.Parameter(torch.zeros(hidden_size, dtype=dtype))
        self.gain = nn.Parameter(torch.ones(hidden_size, dtype=dtype))

    def forward(self, history: History) -> Tensor:
        return aggregate(history.readable(), self.query, self.gain, eps=self.eps, backend=self.backend)


def depth_reader(layout: DepthLayout, hidden_size: int, eps: float, backend: Backend) -> nn.Module:
    """The reader that every sublayer and the head of a model with `layout` gets."""
    return DepthAttention(hidden_size, eps, backend) if layout.has_sources else ResidualStream()
