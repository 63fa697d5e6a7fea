"""The value that flows through the layers: complete sources and the running partial.

Legend for tensor names: T tokens, B batch, D width; a slice is `[T, B, D]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from attnres_train.depth.layout import DepthLayout, Reads
from attnres_train.depth.source import Source


@dataclass(frozen=True)
class History:
    """Outputs of the depth so far: complete sources by number, and the running partial.

    A value: extending it makes a new one, no tensor is written in place.
    """

    sources: Mapping[int, Source]
    partial: Source | None

    @classmethod
    def start(cls, embedding_TBD: Tensor, layout: DepthLayout) -> History:
        """The history before sublayer 0: the embedding is source 0, or opens the running value."""
        opened = Source.open(embedding_TBD)
        return cls({0: opened}, None) if layout.has_sources else cls({}, opened)

    def read(self, reads: Reads) -> tuple[Source, ...]:
        """What one reader sees, oldest first."""
        sources = tuple(self.sources[number] for number in reads.sources)
        if not reads.partial:
            return sources
        assert self.partial is not None, "the layout has a partial here, the history has none"
        return (*sources, self.partial)

    def add(self, output_TBD: Tensor, completes_block: bool) -> History:
        """The history after one more sublayer output; a completed block becomes a source."""
        return self.replace(output_TBD if self.partial is None else self.partial.tap() + output_TBD, completes_block)

    def replace(self, partial_TBD: Tensor, completes_block: bool = False) -> History:
        """The history whose running value is now `partial_TBD`."""
        partial = Source.open(partial_TBD)
        if not completes_block:
            return History(self.sources, partial)
        return History({**self.sources, max(self.sources) + 1: partial}, None)
