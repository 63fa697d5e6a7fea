"""What travels between pipeline stages, planned from the layout alone: no negotiation, no padding.

A *hop* leads from one global stage to the next. It brings every complete source and, where a block is open at
the boundary, the running partial, each at its exact width. Sender and receiver read the same plan, so no
shapes are ever sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnres_train.depth.layout import DepthLayout
from attnres_train.parallel.split import rank_and_chunk


@dataclass(frozen=True)
class Hop:
    """One crossing of one micro-batch from `from_stage` to `to_stage`, the same tensors back as gradients."""

    from_stage: int
    to_stage: int
    sources: tuple[int, ...]
    partial: bool

    @property
    def slices(self) -> int:
        """Tensors of one `[tokens, batch, width]` slice each."""
        return len(self.sources) + self.partial


@dataclass(frozen=True)
class WirePlan:
    """Every hop of a model with `layout` whose layers are split by `layers_per_stage` over `pipeline` ranks.

    Stage s lives on rank `s % pipeline` as its chunk `s // pipeline`. The whole prefix of the history travels
    on every hop (under a window: what of it is still read).

    Raises ValueError if the split does not fit the layout or the grid.
    """

    layout: DepthLayout
    layers_per_stage: tuple[int, ...]
    pipeline: int
    virtual: int = 1

    def __post_init__(self) -> None:
        stages = self.pipeline * self.virtual
        if len(self.layers_per_stage) != stages:
            raise ValueError(f"{len(self.layers_per_stage)} stages in the split, {stages} in the grid")
        if 2 * sum(self.layers_per_stage) != self.layout.num_sublayers:
            raise ValueError(
                f"the split holds {sum(self.layers_per_stage)} layers, the layout {self.layout.num_sublayers // 2}"
            )

    @property
    def num_stages(self) -> int:
        return len(self.layers_per_stage)

    def first_sublayer(self, stage: int) -> int:
        """The sublayer that `stage` starts with."""
        return 2 * sum(self.layers_per_stage[:stage])

    def readers(self, stage: int) -> range:
        """Those who read the depth on `stage`, by sublayer; the head, on the last, is `num_sublayers`."""
        first = self.first_sublayer(stage)
        return range(first, first + 2 * self.layers_per_stage[stage] + (stage == self.num_stages - 1))

    def hop_into(self, stage: int) -> Hop:
        """What `stage` receives; stage 0 receives tokens, not a hop."""
        if not 1 <= stage < self.num_stages:
            raise IndexError(f"no hop leads into stage {stage} of {self.num_stages}")
        boundary = self.first_sublayer(stage)
        sources = self.layout.read_from(boundary)
        # Nothing has been computed before sublayer 0, but the embedding stands: as source 0, or as the
        # partial of the standard residual.
        return Hop(stage - 1, stage, sources, self.layout.partial_before(boundary))

    def hops(self) -> tuple[Hop, ...]:
        """All hops, in the order a micro-batch takes them."""
        return tuple(self.hop_into(stage) for stage in range(1, self.num_stages))

    def ranks_of(self, hop: Hop) -> tuple[int, int]:
        """Pipeline ranks that `hop` leads from and to; they are equal where there is one rank."""
        return rank_and_chunk(hop.from_stage, self.pipeline)[0], rank_and_chunk(hop.to_stage, self.pipeline)[0]

    @property
    def slices_total(self) -> int:
        """Slices of one micro-batch in one direction, over all hops."""
        return sum(hop.slices for hop in self.hops())

    @property
    def slices_max(self) -> int:
        """Slices of the widest hop."""
        return max((hop.slices for hop in self.hops()), default=0)

    @property
    def slices_standard(self) -> int:
        """What the standard residual would send: one slice a hop."""
        return self.num_stages - 1


def slice_bytes(tokens: int, batch: int, width: int, element_bytes: int, sequence_ranks: int = 1) -> int:
    """Bytes of one slice on one rank; sequence parallelism shards its tokens over `sequence_ranks`."""
    return tokens // sequence_ranks * batch * width * element_bytes
