"""A reader as a module: the parameters of one sublayer's (or the head's) look at the depth, and its mode."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from attnres_train.depth.config import ResidualConfig
from attnres_train.depth.history import History
from attnres_train.depth.layout import DepthLayout
from attnres_train.depth.mix import Norm
from attnres_train.depth.modes.choose import mode_of
from attnres_train.depth.modes.mode import Look


class DepthReader(nn.Module):
    """Reader number `index` of a model; `layout.num_sublayers` is the head."""

    def __init__(self, residual: ResidualConfig, layout: DepthLayout, index: int, width: int, eps: float):
        super().__init__()
        self.mode = mode_of(residual, eps)
        self.reads = layout.reads(index)
        self.completes_block = index < layout.num_sublayers and layout.completes_block(index)
        own = self.mode.parameters(self.reads, width, writes=index < layout.num_sublayers)
        for name, initial in own.items():
            self.register_parameter(name, nn.Parameter(torch.full(initial.shape, initial.value)))

    def norm_eps(self, eps: float) -> float:
        """Of the norm behind the read: with `residual.norm_of = "sum"` scaled to what the read starts as.

        With n sources at weight w each, `w sum / sqrt(w^2 mean_square(sum) + w^2 eps)` is the norm of the sum.
        """
        return eps * self.mode.start_share(self.reads) ** 2 if self.mode.residual.norm_of == "sum" else eps

    def read(self, history: History, norm: Norm) -> Tensor:
        """The normalised input of the branch, `[T, B, D]`."""
        return self.mode.read(self._own(), history.read(self.reads), norm)

    def look(self, history: History) -> Look:
        """What `read` makes of `history`, for diagnostics; outside the graph."""
        return self.mode.look(self._own(), history.read(self.reads))

    def write(self, history: History, read_TBD: Tensor, output_TBD: Tensor) -> History:
        """The history after the branch turned `read_TBD` into `output_TBD`."""
        return self.mode.write(self._own(), history, read_TBD, output_TBD, self.completes_block)

    def _own(self) -> dict[str, Tensor]:
        return cast(dict[str, Tensor], dict(self._parameters))
