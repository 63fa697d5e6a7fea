"""A step as events: what every pipeline rank does and waits for, turn by turn of the schedule.

A turn begins when the rank has done the one before and what it needs has arrived. What a stage hands on leaves when
its turn ends (what was complete before, when it begins, if sources leave early) and takes its time on a link that
carries one message after the other. A receive is posted when the rank turns to it, or one message ahead.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import NamedTuple

from attnres_train.parallel.schedule import Schedule, Turn
from attnres_train.parallel.wire import WirePlan

_GROUPS_SHOWN = 4
"""Of micro-batches; a pipeline has its period once the first group is through every rank."""
_GROUPS_COMPARED = 2
"""Over which the pace is measured: where messages are long, every other group takes longer."""


@dataclass(frozen=True)
class TurnSeconds:
    """Seconds of a turn by stage, and of what crosses into each stage (entry 0 is empty).

    `forward_hops[s]` is a history into stage s, `backward_hops[s]` the gradients from it; `early_shares[s]` the share
    of that history that is complete before the sending stage's last layers run.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    forward_hops: tuple[float, ...]
    backward_hops: tuple[float, ...]
    early_shares: tuple[float, ...]
    latencies: tuple[float, ...]
    """Of a message into each stage, and back."""
    ahead: bool
    """Receives are posted before the rank turns to them, so that a message travels while it computes."""


class Box(NamedTuple):
    """One turn, in seconds from the start of the step."""

    rank: int
    turn: Turn
    stage: int
    start: float
    end: float


class Message(NamedTuple):
    """One crossing, from stage to stage, in seconds from the start of the step."""

    from_stage: int
    to_stage: int
    micro_batch: int
    forward: bool
    start: float
    end: float


@dataclass(frozen=True)
class Played:
    """A simulated step. `finish[r]` is when rank r has done its last turn, `busy[r]` what it computed."""

    finish: tuple[float, ...]
    busy: tuple[float, ...]
    boxes: tuple[Box, ...] = ()
    messages: tuple[Message, ...] = ()

    @property
    def seconds(self) -> float:
        return max(self.finish)

    @property
    def bubble_fraction(self) -> float:
        """The share of all ranks' time in which they wait, for work or for messages."""
        return 1 - sum(self.busy) / (len(self.busy) * self.seconds)


def play(schedule: Schedule, wire: WirePlan, costs: TurnSeconds) -> Played:
    """Every turn of every micro-batch."""
    return _Play(schedule, wire, costs).run()


def play_long(schedule: Schedule, wire: WirePlan, costs: TurnSeconds) -> Played:
    """`play`, with the middle of a long step not played: groups of micro-batches take equally long there.

    What is left out takes its time by the difference between a step with two groups more and one without; very uneven
    stages find their pace later, and the result is then up to 2 % off. Boxes and messages are those that were played.
    """
    group = schedule.group_size if schedule.virtual > 1 else schedule.pipeline
    whole, rest = divmod(schedule.micro_batches, group)
    shown = max(_GROUPS_SHOWN, schedule.pipeline // group + 2)
    if whole <= shown + _GROUPS_COMPARED:
        return play(schedule, wire, costs)
    short = play(replace(schedule, micro_batches=shown * group + rest), wire, costs)
    longer = play(replace(schedule, micro_batches=(shown + _GROUPS_COMPARED) * group + rest), wire, costs)
    left_out = (whole - shown) / _GROUPS_COMPARED
    return replace(
        short,
        finish=tuple(a + left_out * (b - a) for a, b in zip(short.finish, longer.finish, strict=True)),
        busy=tuple(a + left_out * (b - a) for a, b in zip(short.busy, longer.busy, strict=True)),
    )


class _Play:
    def __init__(self, schedule: Schedule, wire: WirePlan, costs: TurnSeconds):
        self.schedule, self.wire, self.costs = schedule, wire, costs
        ranks = range(schedule.pipeline)
        self.turns = [list(schedule.turns(rank)) for rank in ranks]
        self.stages = [wire.stages_of(rank) for rank in ranks]
        self.clock, self.busy = [0.0] * len(ranks), [0.0] * len(ranks)
        self.position = [0] * len(ranks)
        self.began = [0.0] * len(ranks)
        """When the turn before this one began: a receive that is posted ahead is posted then."""
        self.lanes: dict[tuple[int, bool], float] = {}
        """When the link from a rank is free, by direction."""
        self.sent: dict[tuple[bool, int, int], tuple[float, float]] = {}
        """Of what a stage and micro-batch waits for: when its sender began and ended."""
        self.boxes: list[Box] = []
        self.messages: list[Message] = []

    def run(self) -> Played:
        waiting = deque(range(self.schedule.pipeline))
        idle = 0
        while waiting:
            rank = waiting.popleft()
            moved = False
            while self.position[rank] < len(self.turns[rank]) and self._turn(rank):
                moved = True
            idle = 0 if moved else idle + 1
            if self.position[rank] < len(self.turns[rank]):
                waiting.append(rank)
            if idle > self.schedule.pipeline:
                raise ValueError(f"a schedule that waits for itself: {self.schedule}")
        return Played(tuple(self.clock), tuple(self.busy), tuple(self.boxes), tuple(self.messages))

    def _turn(self, rank: int) -> bool:
        """Play the next turn of `rank`; False if what it needs has not been sent."""
        turn = self.turns[rank][self.position[rank]]
        stage = self.stages[rank][turn.visit.chunk]
        arrived = self._arrival(rank, turn.forward, turn.visit.micro_batch, stage)
        if arrived is None:
            return False
        start = max(self.clock[rank], arrived)
        seconds = (self.costs.forward if turn.forward else self.costs.backward)[stage]
        end = start + seconds
        self.sent[turn.forward, stage, turn.visit.micro_batch] = (start, end)
        self.boxes.append(Box(rank, turn, stage, start, end))
        self.began[rank], self.clock[rank] = start, end
        self.busy[rank] += seconds
        self.position[rank] += 1
        return True

    def _arrival(self, rank: int, forward: bool, micro_batch: int, stage: int) -> float | None:
        """When what the turn needs is here; None if it has not been sent."""
        costs, sender = self.costs, stage - 1 if forward else stage + 1
        if not 0 <= sender < self.wire.num_stages:
            return 0.0
        times = self.sent.get((forward, sender, micro_batch))
        if times is None:
            return None
        began, ended = times
        from_rank = self.wire.rank_of(sender)
        hop = costs.forward_hops[stage] if forward else costs.backward_hops[sender]
        if from_rank == rank or hop == 0.0:
            return ended
        posted = self.began[rank] if costs.ahead else self.clock[rank]
        early = costs.early_shares[stage] * hop if forward and costs.ahead else 0.0
        free = self.lanes.get((from_rank, forward), 0.0)
        start = max(ended, posted, free, max(began, posted, free) + early)
        gone = start + hop - early
        self.lanes[from_rank, forward] = gone
        end = gone + costs.latencies[max(sender, stage)]
        self.messages.append(Message(sender, stage, micro_batch, forward, start, end))
        return end
