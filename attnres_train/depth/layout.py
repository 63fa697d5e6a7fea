"""Which sources each sublayer and the head read: the only place that knows block boundaries.

A *source* is an output that attention over depth can look at: source 0 is the token embedding, source n the
sum of the outputs of block n. The *partial* is the running sum of the block that is not complete yet.

    standard, gated     no sources at all: the embedding opens the partial, the partial is the residual stream
    full, denseformer   blocks of one sublayer: every sublayer reads every earlier output
    block               blocks of `block_size` sublayers, counted over attention and MLP alike

A *window* k leaves a reader the embedding, the last k complete sources, and the partial.

Sublayers are numbered from 0 to `num_sublayers - 1`; sublayer 2t is the attention of transformer layer t,
2t + 1 its MLP. (The published text numbers sublayers from 1, and K3 counts its blocks in transformer layers:
its 12 is a `block_size` of 24 here.)
"""

from __future__ import annotations

from dataclasses import dataclass

from attnres_train.depth.config import ResidualConfig, ResidualMode
from attnres_train.depth.modes.choose import MODES


@dataclass(frozen=True)
class Reads:
    """What one reader sees: complete sources by number, oldest first, and the partial where it exists."""

    sources: tuple[int, ...]
    partial: bool

    @property
    def count(self) -> int:
        return len(self.sources) + self.partial


@dataclass(frozen=True)
class DepthLayout:
    """The depth structure of a model of `num_sublayers` sublayers.

    `block_size` is None where there are no blocks (`standard`, `gated`); `window` is None where all are read.

    Raises ValueError for sizes that make no layout.
    """

    num_sublayers: int
    mode: ResidualMode
    block_size: int | None
    window: int | None = None

    def __post_init__(self) -> None:
        if self.num_sublayers < 1:
            raise ValueError(f"a layout needs at least 1 sublayer, got {self.num_sublayers}")
        blocks = MODES[self.mode].blocks
        if (self.block_size is None) != (blocks == "none"):
            raise ValueError(f"mode {self.mode!r} does not go with block_size {self.block_size}")
        if self.block_size is not None and self.block_size < 1:
            raise ValueError(f"block_size counts sublayers and is at least 1, got {self.block_size}")
        if blocks == "of one" and self.block_size != 1:
            raise ValueError(f"mode {self.mode!r} is blocks of 1 sublayer, got block_size {self.block_size}")
        if self.window is not None and (self.window < 1 or self.block_size is None):
            raise ValueError(f"mode {self.mode!r} does not go with a window of {self.window} sources")

    @classmethod
    def of(cls, residual: ResidualConfig, num_layers: int) -> DepthLayout:
        """The layout of a checked configuration with `num_layers` transformer layers."""
        size = {"none": None, "of one": 1, "of a size": residual.block_size}[MODES[residual.mode].blocks]
        return cls(2 * num_layers, residual.mode, size, residual.window)

    @property
    def has_sources(self) -> bool:
        """Whether anything looks back over depth; if not, the residual is one running value."""
        return self.block_size is not None

    def sources_before(self, sublayer: int) -> int:
        """Complete sources when `sublayer` starts; `num_sublayers` asks for the head."""
        return 0 if self.block_size is None else 1 + sublayer // self.block_size

    def partial_before(self, sublayer: int) -> bool:
        """Whether a partial exists when `sublayer` starts; `num_sublayers` asks for the head."""
        return True if self.block_size is None else sublayer % self.block_size != 0

    def reads(self, sublayer: int) -> Reads:
        """What `sublayer` reads; `num_sublayers` asks for the head: every source, and a last block that is short."""
        if not 0 <= sublayer <= self.num_sublayers:
            raise IndexError(f"sublayer {sublayer} of a layout with {self.num_sublayers}")
        complete = self.sources_before(sublayer)
        first = 1 if self.window is None else max(1, complete - self.window)
        return Reads((0, *range(first, complete)) if complete else (), self.partial_before(sublayer))

    def head_reads(self) -> Reads:
        """What the final aggregation reads."""
        return self.reads(self.num_sublayers)

    def read_from(self, sublayer: int) -> tuple[int, ...]:
        """The complete sources that exist when `sublayer` starts and that it, a later one or the head reads.

        A window only moves on, so these are those that `sublayer` itself reads.
        """
        return self.reads(sublayer).sources

    def completes_block(self, sublayer: int) -> bool:
        """Whether the output of `sublayer` completes a source."""
        return self.block_size is not None and (sublayer + 1) % self.block_size == 0

    @property
    def num_sources(self) -> int:
        """Sources of the whole model, the embedding included, a short last block not."""
        return self.sources_before(self.num_sublayers)

    def spans(self, layers: range, recompute: str) -> list[range]:
        """Consecutive transformer layers that backward makes again together, keeping what enters each span.

        `layer` cuts after every layer, `block` after those in which a block ends; anything else makes none again.
        """
        if recompute not in ("layer", "block"):
            return []
        ends = [t + 1 for t in layers if recompute == "layer" or self._ends_block_in(t) or t == layers[-1]]
        return [range(start, end) for start, end in zip([layers.start, *ends], ends, strict=False)]

    def _ends_block_in(self, layer: int) -> bool:
        return self.completes_block(2 * layer) or self.completes_block(2 * layer + 1)
