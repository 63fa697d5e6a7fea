"""What travels between pipeline stages and what every rank keeps, planned from the layout alone.

A *hop* leads from one global stage to the next. It brings complete sources and, where a block is open at the
boundary, the running partial, each at its exact width. Sender and receiver read the same plan: no shapes are sent,
nothing is padded.

Without a cache a hop brings the whole prefix of the history. With it a rank keeps what it has received or made of a
micro-batch for its later stages, and a hop brings only what its receiver has never had:

    stage        0     1     2     3        P = 2, V = 2, one block a stage
    rank         0     1     0     1
    makes        0,1   2     3     4
    receives           0,1   2     3        whole prefix: 0,1 / 0,1,2 / 0,1,2,3

Gradients go the other way. Stages of one rank run backward from the last to the first, so what later stages owe a
kept source is complete when the stage that received or made it runs backward, and travels once. With
`exact_gradients` it is not: each hop brings back the sum so far of every source, whose terms then add up in the order
of one process (floating-point sums depend on it), at the cost of the whole prefix on the way back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from attnres_train.depth.layout import DepthLayout


@dataclass(frozen=True)
class Hop:
    """One crossing of one micro-batch from `from_stage` to `to_stage`.

    `sources` and, if there is one, the partial travel forward; gradients of the sources `returned` and of the
    partial travel back.
    """

    from_stage: int
    to_stage: int
    sources: tuple[int, ...]
    partial: bool
    returned: tuple[int, ...]

    @property
    def slices(self) -> int:
        """Tensors of one `[tokens, batch, width]` slice each that travel forward."""
        return len(self.sources) + self.partial

    @property
    def slices_back(self) -> int:
        """Gradients of one slice each that travel back."""
        return len(self.returned) + self.partial


@dataclass(frozen=True)
class Kept:
    """A source that one rank holds of every micro-batch, from the forward to the backward of stage `opened`.

    That stage computed or received it. `readers` are later stages of the rank that use the same source; each must have
    run backward before `opened` does, and in evaluation the last of them is the last to need it.
    """

    number: int
    opened: int
    readers: tuple[int, ...]

    @property
    def last_reader(self) -> int:
        return self.readers[-1] if self.readers else self.opened


@dataclass(frozen=True)
class WirePlan:
    """Every hop of a model with `layout` whose layers are split by `layers_per_stage` over `pipeline` ranks.

    Stage s is on rank s mod P. `cache` keeps sources on a rank for its later stages; `exact_gradients` returns running
    sums on every hop.

    Raises ValueError if the split does not fit the layout or the grid, or if a stage of no layers, which would hand
    sources on and read none, stands between others that share gradients by cache.
    """

    layout: DepthLayout
    layers_per_stage: tuple[int, ...]
    pipeline: int
    virtual: int = 1
    cache: bool = False
    exact_gradients: bool = False

    def __post_init__(self) -> None:
        stages = self.pipeline * self.virtual
        if len(self.layers_per_stage) != stages:
            raise ValueError(f"{len(self.layers_per_stage)} stages in the split, {stages} in the grid")
        if 2 * sum(self.layers_per_stage) != self.layout.num_sublayers:
            raise ValueError(
                f"the split holds {sum(self.layers_per_stage)} layers, the layout {self.layout.num_sublayers // 2}"
            )

        shares = self.cache and not self.exact_gradients and self.layout.has_sources
        if shares and has_empty_middle(self.layers_per_stage):
            raise ValueError(
                f"a stage of no layers in the middle of {self.layers_per_stage} does not go with the cache"
            )

    @property
    def num_stages(self) -> int:
        return len(self.layers_per_stage)

    def rank_of(self, stage: int) -> int:
        """The pipeline rank that holds `stage`."""
        return stage % self.pipeline

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages of `rank`, in the order a micro-batch visits them: its chunks."""
        return tuple(range(rank, self.num_stages, self.pipeline))

    def first_sublayer(self, stage: int) -> int:
        """The sublayer that `stage` starts with; `num_stages` asks for the end."""
        return 2 * sum(self.layers_per_stage[:stage])

    def readers(self, stage: int) -> range:
        """Those who read the depth on `stage`, by sublayer; the head, on the last, is `num_sublayers`."""
        first = self.first_sublayer(stage)
        return range(first, first + 2 * self.layers_per_stage[stage] + (stage == self.num_stages - 1))

    def hop_into(self, stage: int) -> Hop:
        """What `stage` receives; stage 0 receives tokens, not a hop."""
        if not 1 <= stage < self.num_stages:
            raise IndexError(f"no hop leads into stage {stage} of {self.num_stages}")
        return self._hops[stage - 1]

    def hops(self) -> tuple[Hop, ...]:
        """All hops, in the order a micro-batch takes them."""
        return self._hops

    def made_on(self, stage: int) -> tuple[int, ...]:
        """Sources that `stage` completes; the embedding is the first stage's."""
        first, end = self.first_sublayer(stage), self.first_sublayer(stage + 1)
        start = self.layout.sources_before(first) if stage else 0
        return tuple(range(start, self.layout.sources_before(end)))

    def consumers(self, stage: int, source: int) -> int:
        """How many on `stage` use `source`, each with one gradient: its readers, and the hop that returns one."""
        returned = stage + 1 < self.num_stages and source in self.hop_into(stage + 1).returned
        return self._reads[stage].get(source, 0) + returned

    def partial_consumers(self, stage: int) -> int:
        """How many on `stage` use the partial that it received: its first reader and what adds to it, or one alone."""
        return 2 if self.layers_per_stage[stage] else 1

    def deposits_by(self, stage: int, source: int) -> int:
        """Gradients that the rank's buffer of `source` has got once `stage` has run backward.

        Later stages of the rank come first: until then they have given theirs to the same buffer, unless
        `exact_gradients` gives each stage its own.
        """
        later = () if self.exact_gradients else self._later_users.get((stage, source), ())
        return self.consumers(stage, source) + sum(self.consumers(user, source) for user in later)

    def known_on(self, stage: int) -> tuple[int, ...]:
        """Sources that `stage` takes from what its rank keeps."""
        return tuple(entry.number for entry in self.kept_on(self.rank_of(stage)) if stage in entry.readers)

    def kept_on(self, rank: int) -> tuple[Kept, ...]:
        """What `rank` holds of every micro-batch, oldest stage first."""
        return self._kept[rank]

    def received_slices(self, stage: int) -> int:
        """Slices that stand on the rank of `stage` from its forward to its backward because it received them."""
        return self.hop_into(stage).slices if stage else 0

    def kept_slices(self, stage: int) -> int:
        """Those, and the sources that `stage` made itself."""
        return self.received_slices(stage) + len(self.made_on(stage))

    def owed_slices(self, stage: int) -> int:
        """Gradients of kept sources that wait on the rank after the backward of `stage` for an earlier stage's."""
        if self.exact_gradients:
            return 0
        kept = self.kept_on(self.rank_of(stage))
        return sum(entry.opened < stage <= entry.last_reader for entry in kept)

    @property
    def slices_total(self) -> int:
        """Slices of one micro-batch forward, over all hops."""
        return sum(hop.slices for hop in self.hops())

    @property
    def slices_back_total(self) -> int:
        """Gradient slices of one micro-batch, over all hops."""
        return sum(hop.slices_back for hop in self.hops())

    @property
    def slices_max(self) -> int:
        """Slices of the widest hop."""
        return max((hop.slices for hop in self.hops()), default=0)

    @property
    def slices_standard(self) -> int:
        """What the standard residual would send: one slice a hop."""
        return len(self.hops())

    def _alive(self, stage: int) -> tuple[int, ...]:
        """Sources that exist when `stage` starts and that it or a later one reads."""
        return self.layout.read_from(self.first_sublayer(stage)) if stage else ()

    @cached_property
    def _reads(self) -> tuple[Counter[int], ...]:
        """Readers of each source on each stage."""
        return tuple(
            Counter(source for reader in self.readers(stage) for source in self.layout.reads(reader).sources)
            for stage in range(self.num_stages)
        )

    @cached_property
    def _hops(self) -> tuple[Hop, ...]:
        arriving = self._arriving()
        hops = []
        for stage in range(1, self.num_stages):
            # Nothing has been computed before sublayer 0, but the embedding stands: as source 0, or as the
            # partial of the standard residual.
            partial = self.layout.partial_before(self.first_sublayer(stage))
            returned = self._alive(stage) if self.exact_gradients else arriving[stage]
            hops.append(Hop(stage - 1, stage, arriving[stage], partial, returned))
        return tuple(hops)

    def _arriving(self) -> list[tuple[int, ...]]:
        """Sources that each stage receives: all that are alive, or those that its rank has never had."""
        if not self.cache:
            return [self._alive(stage) for stage in range(self.num_stages)]
        held: list[set[int]] = [set() for _ in range(self.pipeline)]
        arriving = []
        for stage in range(self.num_stages):
            mine = held[self.rank_of(stage)]
            arriving.append(tuple(source for source in self._alive(stage) if source not in mine))
            mine.update(self._alive(stage), self.made_on(stage))
        return arriving

    @cached_property
    def _later_users(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """Of each stage and source: the later stages of its rank that use what is kept."""
        users = {}
        for entry in (entry for kept in self._kept for entry in kept):
            for stage in (entry.opened, *entry.readers):
                users[stage, entry.number] = tuple(user for user in entry.readers if user > stage)
        return users

    @cached_property
    def _kept(self) -> tuple[tuple[Kept, ...], ...]:
        return tuple(tuple(self._kept_by(rank)) for rank in range(self.pipeline))

    def _kept_by(self, rank: int) -> list[Kept]:
        stages = self.stages_of(rank)
        kept = []
        for stage in stages:
            received = self.hop_into(stage).sources if stage else ()
            for number in (*received, *self.made_on(stage)):
                again = [later for later in stages if self.cache and later > stage and self._uses_known(later, number)]
                kept.append(Kept(number, stage, tuple(again)))
        return kept

    def _uses_known(self, stage: int, source: int) -> bool:
        return source in self._alive(stage) and self.consumers(stage, source) > 0


def has_empty_middle(layers_per_stage: tuple[int, ...]) -> bool:
    """Whether a stage other than the first and the last has no layers."""
    return 0 in layers_per_stage[1:-1]
