"""The value that flows through the layers: complete sources and the running partial.

Legend for tensor names: T tokens, B batch, D width; a slice is `[T, B, D]`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnres_train.depth.layout import DepthLayout


@dataclass(frozen=True)
class History:
    """Outputs of the depth so far. A value: extending it makes a new one, no tensor is written in place."""

    sources: tuple[Tensor, ...]
    partial: Tensor | None

    @classmethod
    def start(cls, embedding_TBD: Tensor, layout: DepthLayout) -> History:
        """The history before sublayer 0: the embedding is source 0, or opens the standard residual's sum."""
        if layout.has_sources:
            return cls((embedding_TBD,), None)
        return cls((), embedding_TBD)

    def readable(self) -> tuple[Tensor, ...]:
        """Everything a reader attends to, oldest first."""
        return self.sources if self.partial is None else (*self.sources, self.partial)

    def add(self, output_TBD: Tensor, completes_block: bool) -> History:
        """The history after one more sublayer output; a completed block becomes a source."""
        partial = output_TBD if self.partial is None else self.partial + output_TBD
        if completes_block:
            return History((*self.sources, partial), None)
        return History(self.sources, partial)
