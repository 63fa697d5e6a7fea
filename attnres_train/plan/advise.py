"""Layouts for a number of devices: every grid worth a thought, held against the rules, memory and the clock.

    candidates -> refused by a rule of `config/check.py`, or because it does not fit -> the rest by tokens a second

A candidate keeps the model, the global batch and the steps, and changes what `Layout` names. Layouts that nobody would
start are left out, not refused: tensor parallelism beyond a node, sequence shards left off beside it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from math import inf
from typing import NamedTuple

from attnres_train.config.check import check
from attnres_train.config.resolve import num_micro_batches, resolved_split, vocabulary_size, wire_plan
from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem
from attnres_train.model.size import training_flops_per_token
from attnres_train.parallel.wire import WirePlan
from attnres_train.plan.checkpoint import plan_checkpoint
from attnres_train.plan.layouts import Layout, families
from attnres_train.plan.memory import MemoryPlan, StageParameters, stage_parameters, worst_rank_memory
from attnres_train.plan.speeds import Machine
from attnres_train.plan.state import StateBytes, state_bytes
from attnres_train.plan.timing import TimePlan, Timing
from attnres_train.plan.traffic import plan_traffic
from attnres_train.plan.units import GIB
from attnres_train.plan.whole import usable_bytes


@dataclass(frozen=True)
class Choice:
    """A layout that can run, and what it takes."""

    layout: Layout
    overrides: str
    """That make the configuration this layout."""
    time: TimePlan
    memory: MemoryPlan
    wire_bytes: int
    """Of a step, both directions, all ranks."""


class Refusal(NamedTuple):
    """Layouts refused for one reason: how many, one of them, and the reason with its numbers."""

    number: int
    layout: Layout
    words: str


@dataclass(frozen=True)
class Advice:
    """The best layouts, the fastest first; how many were tried and can run; and why the others were refused, the most
    common reason first. A layout that can run stands for those that differ from it in making more again."""

    machine: Machine
    world: int
    choices: tuple[Choice, ...]
    tried: int
    runnable: int
    refused: tuple[Refusal, ...]

    @property
    def implied(self) -> int:
        """Layouts that one which can run stands for."""
        return self.tried - self.runnable - sum(refusal.number for refusal in self.refused)


def advise(config: RunConfig, world: int, machine: Machine, wanted: int = 5) -> Advice:
    """The `wanted` fastest layouts of `config` on `world` devices of `machine`, by predicted tokens a second.

    Raises Refused where the vocabulary cannot be known.
    """
    return _Adviser(config, world, machine).advise(wanted)


_STATE_TOO_LARGE, _TOO_LARGE = "state", "memory"


class _Candidate(NamedTuple):
    """A layout that can run, not yet simulated."""

    layout: Layout
    timing: Timing


class _Adviser:
    def __init__(self, config: RunConfig, world: int, machine: Machine):
        self.config, self.world, self.machine = config, world, machine
        self.entries = vocabulary_size(config)
        self.usable = usable_bytes(machine)
        self.counts: Counter[str] = Counter()
        self.leanest: dict[str, int] = {}
        self.examples: dict[str, tuple[Layout, str]] = {}
        self.wires = lru_cache(maxsize=None)(self._wire)
        self.parameters = lru_cache(maxsize=None)(self._parameters)
        self.states = lru_cache(maxsize=None)(self._state)

    def advise(self, wanted: int) -> Advice:
        tried = 0
        runnable: list[_Candidate] = []
        for family in families(self.world, self.machine.devices_per_node, self.config.model.num_layers):
            tried += len(family)
            found = self._first_that_fits(family)
            if found is not None:
                runnable.append(found)
        choices = self._fastest(runnable, wanted)
        refused = tuple(Refusal(count, *self.examples[reason]) for reason, count in self.counts.most_common())
        return Advice(self.machine, self.world, tuple(choices), tried, len(runnable), refused)

    def _fastest(self, candidates: list[_Candidate], wanted: int) -> list[Choice]:
        """The `wanted` fastest, the fastest first.

        Only those are simulated that a bound does not rule out: once `wanted` are known, one whose step cannot be
        shorter than the slowest of them. A good guess comes first, so that the bounds have something to beat.
        """
        best: list[Choice] = []
        for candidate in sorted(candidates, key=lambda each: each.timing.evenly_seconds()):
            timing, slowest = candidate.timing, best[-1].time.step_seconds if len(best) == wanted else inf
            if timing.least_seconds_of_any_split() >= slowest or timing.least_seconds() >= slowest:
                continue
            choice = self._timed(candidate)
            if choice is not None:
                best = sorted([*best, choice], key=lambda each: each.time.step_seconds)[:wanted]
        return best

    def _first_that_fits(self, family: list[Layout]) -> _Candidate | None:
        """Rules first, then memory, the fastest of the family first.

        The first rank has most micro-batches in flight and the last the head: if neither is too full it goes on, and
        what is chosen is held against the memory of every rank.
        """
        for number, layout in enumerate(family):
            config = layout.applied_to(self.config)
            if problems := check(config, self.world):
                self._refuse(layout, _rule(problems[0]), f"{problems[0].key}: {problems[0].message}")
                continue
            wire, padded = self.wires(layout.pipeline, layout.virtual, layout.tensor), self._padded(layout.tensor)
            count = num_micro_batches(config, self.world)
            state_of = self._state_of(layout)
            if (bytes_ := _standing(state_of(0))) > self.usable:
                for other in family[number:]:  # what is made again does not change it
                    self._too_large(other, _STATE_TOO_LARGE, bytes_)
                return None
            for rank in dict.fromkeys((0, layout.pipeline - 1)):
                bytes_ = worst_rank_memory(config, padded, wire, count, layout.data, [rank], state_of).total
                if bytes_ > self.usable:
                    self._too_large(layout, _TOO_LARGE, bytes_)
                    break
            else:
                return _Candidate(layout, self._timing(layout, config, count))
        return None

    def _state_of(self, layout: Layout) -> Callable[[int], StateBytes]:
        """Of a rank of `layout`; neither the micro-batch nor what is made again changes it."""
        return partial(self.states, layout.pipeline, layout.virtual, layout.tensor, layout.zero)

    def _state(self, pipeline: int, virtual: int, tensor: int, zero: int, rank: int) -> StateBytes:
        data = self.world // (tensor * pipeline)
        config = Layout(tensor, pipeline, virtual, data, False, 1, "none", zero).applied_to(self.config)
        return state_bytes(config, self._padded(tensor), self.wires(pipeline, virtual, tensor), rank, data)

    def _too_large(self, layout: Layout, reason: str, size: int) -> None:
        """Refused, with the leanest of its kind as the example: how far the devices are from enough."""
        if size < self.leanest.get(reason, size + 1):
            self.leanest[reason] = size
            self.examples.pop(reason, None)
        what = "weights, gradients and optimizer alone need" if reason == _STATE_TOO_LARGE else "needs"
        words = f"{what} {size / GIB:,.2f} GiB of the {self.usable / GIB:,.1f} GiB of a device; the leanest of them"
        self._refuse(layout, reason, words)

    def _refuse(self, layout: Layout, reason: str, words: str) -> None:
        self.counts[reason] += 1
        self.examples.setdefault(reason, (layout, words))

    def _padded(self, tensor: int) -> int:
        return self.config.model.padded_vocabulary(self.entries, tensor)

    def _wire(self, pipeline: int, virtual: int, tensor: int) -> WirePlan:
        config = Layout(tensor, pipeline, virtual, 1, False, 1, "none").applied_to(self.config)
        return wire_plan(config, resolved_split(config, self.entries))

    def _parameters(self, pipeline: int, virtual: int, tensor: int) -> tuple[StageParameters, ...]:
        return stage_parameters(self.config, self._padded(tensor), self.wires(pipeline, virtual, tensor))

    def _timing(self, layout: Layout, config: RunConfig, count: int) -> Timing:
        shape = (layout.pipeline, layout.virtual, layout.tensor)
        parameters = self.parameters(*shape)
        return Timing(
            config, self._padded(layout.tensor), self.wires(*shape), parameters, count, self.world, self.machine
        )

    def _timed(self, candidate: _Candidate) -> Choice | None:
        layout, timing, config = candidate.layout, candidate.timing, candidate.timing.config
        count, padded, training = timing.micro_batches, timing.padded, config.training
        memory = worst_rank_memory(config, padded, timing.wire, count, layout.data, state_of=self._state_of(layout))
        if memory.total > self.usable:
            self._too_large(layout, _TOO_LARGE, memory.total)
            return None
        tokens = training.global_batch_size * training.sequence_length
        flops = training_flops_per_token(config.model, padded, training.sequence_length) * tokens
        save = plan_checkpoint(config, self.entries, padded, timing.wire, self.world)
        traffic = plan_traffic(config, timing.wire, count, layout.data)
        time = timing.plan(flops, save.total_bytes)
        wire_bytes = traffic.step_forward_bytes + traffic.step_backward_bytes
        return Choice(layout, layout.overrides(self.config, self.entries), time, memory, wire_bytes)


def _standing(state: StateBytes) -> int:
    """What stands on the device whatever the micro-batch is."""
    return state.weights + state.gradients + state.masters + state.moments


def _rule(problem: Problem) -> str:
    """The same for all problems that differ in numbers alone."""
    return f"{problem.key}: {re.sub(r'[0-9][0-9.]*', 'n', problem.message)}"
