"""The order in which every pipeline rank visits its stages: megatron-core's schedules as plain values.

Two schedules, as megatron-core 0.16.1 runs them. 1F1B (one stage a rank): a rank runs ahead by as many forwards as
there are ranks behind it, then a forward and a backward in turn. Interleaved (`virtual` stages a rank, its
*chunks*): micro-batches go through each chunk in groups, and backward visits the chunks in reverse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple


class Visit(NamedTuple):
    """One micro-batch on one chunk of a rank."""

    micro_batch: int
    chunk: int


class Turn(NamedTuple):
    """What a rank does next."""

    forward: bool
    visit: Visit


class Standing(NamedTuple):
    """Micro-batches of which something stands on a rank, by chunk.

    `in_flight`: their forward is done, not their backward. `owing`: their backward on the chunk is done, not that on
    the chunk before it.
    """

    in_flight: tuple[int, ...]
    owing: tuple[int, ...]


class Arrival(NamedTuple):
    """A message to come: of which micro-batch, for (or, of gradients, back to) which stage."""

    micro_batch: int
    stage: int


@dataclass(frozen=True)
class Schedule:
    """A step of `micro_batches` over `pipeline` ranks of `virtual` chunks.

    `group` micro-batches run on one chunk before the next chunk's turn; None stands for `pipeline` of them.
    """

    pipeline: int
    virtual: int
    micro_batches: int
    group: int | None = None

    @property
    def group_size(self) -> int:
        return self.pipeline if self.group is None else self.group

    @property
    def is_valid(self) -> bool:
        """Whether megatron-core runs it: its interleaved schedule fills the pipeline with the last group, too."""
        left = self.micro_batches % self.group_size
        in_range = self.pipeline <= self.group_size <= self.micro_batches
        return self.virtual == 1 or (in_range and (left == 0 or left >= self.pipeline))

    def forwards(self) -> list[Visit]:
        """Forward visits, the same on every rank."""
        return [
            Visit(micro_batch, chunk)
            for start in range(0, self.micro_batches, self.group_size)
            for chunk in range(self.virtual)
            for micro_batch in range(start, min(start + self.group_size, self.micro_batches))
        ]

    def backwards(self) -> list[Visit]:
        """Backward visits, the same on every rank: through the chunks from the last to the first."""
        return [Visit(micro_batch, self.virtual - 1 - chunk) for micro_batch, chunk in self.forwards()]

    def warmup(self, rank: int) -> int:
        """Forwards that `rank` runs before its first backward, but for the one just before it."""
        ahead = self.pipeline - rank - 1
        if self.virtual > 1:
            ahead = 2 * ahead + (self.virtual - 1) * self.group_size
        return min(ahead, self.micro_batches * self.virtual)

    def turns(self, rank: int, forward_only: bool = False) -> Iterator[Turn]:
        """Everything `rank` does, in order."""
        forwards = self.forwards()
        if forward_only:
            yield from (Turn(True, visit) for visit in forwards)
            return
        backwards = iter(self.backwards())
        warmup = self.warmup(rank)
        for position, visit in enumerate(forwards):
            yield Turn(True, visit)
            if position >= warmup:
                yield Turn(False, next(backwards))
        yield from (Turn(False, visit) for visit in backwards)

    def arrivals(self, rank: int) -> list[Arrival]:
        """Histories in the order the previous rank sends them to `rank`.

        Rank 0 is fed by the last rank, which visits chunk c to feed rank 0's chunk c + 1.
        """
        stages, previous = self.pipeline * self.virtual, (rank - 1) % self.pipeline
        fed = [Arrival(m, c * self.pipeline + previous + 1) for m, c in self.forwards()]
        return [arrival for arrival in fed if arrival.stage < stages]

    def returns(self, rank: int) -> list[Arrival]:
        """Gradients in the order the next rank returns them, by the stage of `rank` that they are for."""
        following = (rank + 1) % self.pipeline
        senders = [(m, c * self.pipeline + following) for m, c in self.backwards()]
        return [Arrival(m, stage - 1) for m, stage in senders if stage > 0]

    def at_peak(self, rank: int, kept: Sequence[int], owed: Sequence[int] | None = None) -> Standing:
        """What stands on `rank` when it weighs most: `kept[c]` a micro-batch in flight on chunk c, `owed[c]` owing."""
        owed = [0] * self.virtual if owed is None else owed
        turns = _all_turns(self, rank)
        # What a backward adds and takes: it owes to the chunk before it, and what the chunk after it owed is paid.
        behind = [
            (owed[c] if c else 0) - kept[c] - (owed[c + 1] if c + 1 < self.virtual else 0) for c in range(self.virtual)
        ]
        weight, heaviest, peak = 0, -1, 0
        for position, (forward, (_, chunk)) in enumerate(turns, 1):
            weight += kept[chunk] if forward else behind[chunk]
            if weight > heaviest:
                heaviest, peak = weight, position
        in_flight, owing = [0] * self.virtual, [0] * self.virtual
        for forward, (_, chunk) in turns[:peak]:
            in_flight[chunk] += 1 if forward else -1
            if not forward:
                owing[chunk] += chunk > 0
                if chunk + 1 < self.virtual:
                    owing[chunk + 1] -= 1
        return Standing(tuple(in_flight), tuple(owing))


@lru_cache(maxsize=64)
def _all_turns(schedule: Schedule, rank: int) -> tuple[Turn, ...]:
    """Kept for who weighs one schedule again and again, as advice does."""
    return tuple(schedule.turns(rank))
