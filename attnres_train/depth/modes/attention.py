"""Attention over depth as published (Attention Residuals, arXiv 2603.15031), for Full and Block alike.

The query starts at exactly zero, so a reader starts as the mean of its sources; behind a norm that is the
standard residual (exactly, up to the norm's eps).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from attnres_train.depth.config import ATTENTION_OPTIONS, ResidualConfig
from attnres_train.depth.modes.mode import Blocks, Initial, Look, Mode
from attnres_train.depth.modes.options import AttentionWithOptions
from attnres_train.depth.modes.standard import Standard

if TYPE_CHECKING:
    from torch import Tensor

    from attnres_train.depth.layout import Reads
    from attnres_train.depth.mix import Norm
    from attnres_train.depth.source import Source


class FullAttention(Standard):
    """One learned query and one key gain a reader; what it writes is the branch's output alone."""

    blocks: ClassVar[Blocks] = "of one"
    keys = ("window", "norm_of", *ATTENTION_OPTIONS)
    products = 2

    @classmethod
    def of(cls, residual: ResidualConfig, eps: float) -> Mode:
        return AttentionWithOptions(residual, eps) if residual.changes_attention else cls(residual, eps)

    def parameters(self, reads: Reads, width: int, writes: bool) -> dict[str, Initial]:
        return {"query": Initial((width,), 0.0), "gain": Initial((width,), 1.0)}

    def start_share(self, reads: Reads) -> float:
        return 1 / reads.count

    def read(self, own: Mapping[str, Tensor], sources: Sequence[Source], norm: Norm) -> Tensor:
        from attnres_train.depth.aggregation import aggregate_sources

        backend = self.residual.backend
        return aggregate_sources(sources, own["query"], own["gain"], eps=self.eps, norm=norm, backend=backend)

    def look(self, own: Mapping[str, Tensor], sources: Sequence[Source]) -> Look:
        from attnres_train.depth.aggregation import mix_with_weights

        return mix_with_weights([source.value for source in sources], own["query"], own["gain"], eps=self.eps)


class BlockAttention(FullAttention):
    """The same over the sums of blocks."""

    blocks = "of a size"
