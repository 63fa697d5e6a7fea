"""Layouts for a number of devices: every grid worth a thought, held against the rules, memory and the clock.

    candidates -> refused by a rule of `config/check.py`, or because it does not fit -> the rest by tokens a second

A candidate keeps the model, the global batch and the steps, and changes what `Layout` names.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from attnres_train.config.check import check
from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem
from attnres_train.plan.layouts import Layout, families
from attnres_train.plan.memory import worst_rank_memory
from attnres_train.plan.speeds import Machine
from attnres_train.plan.state import StateBytes, state_bytes
from attnres_train.plan.timing import Timing
from attnres_train.plan.whole import Plan, plan_of
from attnres_train.setup import Setup
from attnres_train.words import GIB


@dataclass(frozen=True)
class AdvisedLayout:
    """A layout that can run, and what it takes."""

    layout: Layout
    overrides: str
    """That make the configuration this layout."""
    plan: Plan


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
    choices: tuple[AdvisedLayout, ...]
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
    return _Adviser(Setup.of(config, world), machine).advise(wanted)


_STATE_TOO_LARGE, _TOO_LARGE = "state", "memory"


class _Candidate(NamedTuple):
    """A layout that can run, not yet simulated."""

    layout: Layout
    timing: Timing


class _Adviser:
    def __init__(self, setup: Setup, machine: Machine):
        self.setup, self.machine = setup, machine
        self.counts: Counter[str] = Counter()
        self.leanest: dict[str, int] = {}
        self.examples: dict[str, tuple[Layout, str]] = {}

    def advise(self, wanted: int) -> Advice:
        world, num_layers = self.setup.world, self.setup.config.model.num_layers
        tried = list(families(world, self.machine.devices_per_node, num_layers))
        runnable = [found for family in tried if (found := self._first_that_fits(family)) is not None]
        choices = self._fastest(runnable, wanted)
        refused = tuple(Refusal(count, *self.examples[reason]) for reason, count in self.counts.most_common())
        return Advice(self.machine, world, tuple(choices), sum(map(len, tried)), len(runnable), refused)

    def _fastest(self, candidates: list[_Candidate], wanted: int) -> list[AdvisedLayout]:
        """The `wanted` fastest, the fastest first.

        Only those are simulated that a bound does not rule out: once `wanted` are known, one whose step cannot be
        shorter than the slowest of them. A good guess comes first, so that the bounds have something to beat.
        """
        best: list[AdvisedLayout] = []
        for candidate in sorted(candidates, key=lambda each: each.timing.evenly_seconds()):
            timing, slowest = candidate.timing, best[-1].plan.step_seconds if len(best) == wanted else inf
            if timing.least_seconds_of_any_split() >= slowest or timing.least_seconds() >= slowest:
                continue
            choice = self._timed(candidate)
            if choice is not None:
                best = sorted([*best, choice], key=lambda each: each.plan.step_seconds)[:wanted]
        return best

    def _first_that_fits(self, family: list[Layout]) -> _Candidate | None:
        """Rules first, then memory, the fastest of the family first.

        The first rank has most micro-batches in flight and the last the head: if neither is too full it goes on, and
        what is chosen is held against the memory of every rank.
        """
        for number, layout in enumerate(family):
            setup = self.setup.changed(layout.applied_to(self.setup.config))
            if problems := check(setup.config, setup.world):
                self._refuse(layout, _rule(problems[0]), f"{problems[0].key}: {problems[0].message}")
                continue
            if (bytes_ := _standing(state_bytes(setup, 0))) > self.machine.usable_bytes:
                for other in family[number:]:  # what is made again does not change it
                    self._too_large(other, _STATE_TOO_LARGE, bytes_)
                return None
            for rank in dict.fromkeys((0, layout.pipeline - 1)):
                bytes_ = worst_rank_memory(setup, [rank]).total
                if bytes_ > self.machine.usable_bytes:
                    self._too_large(layout, _TOO_LARGE, bytes_)
                    break
            else:
                return _Candidate(layout, Timing(setup, self.machine))
        return None

    def _too_large(self, layout: Layout, reason: str, size: int) -> None:
        """Refused, with the leanest of its kind as the example: how far the devices are from enough."""
        if size < self.leanest.get(reason, size + 1):
            self.leanest[reason] = size
            self.examples.pop(reason, None)
        what = "weights, gradients and optimizer alone need" if reason == _STATE_TOO_LARGE else "needs"
        usable = f"{self.machine.usable_gib:,.1f} GiB of a device"
        self._refuse(layout, reason, f"{what} {size / GIB:,.2f} GiB of the {usable}; the leanest of them")

    def _refuse(self, layout: Layout, reason: str, words: str) -> None:
        self.counts[reason] += 1
        self.examples.setdefault(reason, (layout, words))

    def _timed(self, candidate: _Candidate) -> AdvisedLayout | None:
        layout, planned = candidate.layout, plan_of(candidate.timing.setup, self.machine)
        if not planned.fits:
            self._too_large(layout, _TOO_LARGE, planned.memory.total)
            return None
        return AdvisedLayout(layout, layout.overrides(self.setup), planned)


def _standing(state: StateBytes) -> int:
    """What stands on the device whatever the micro-batch is."""
    return state.weights + state.gradients + state.masters + state.moments + state.average


def _rule(problem: Problem) -> str:
    """The same for all problems that differ in numbers alone."""
    return f"{problem.key}: {re.sub(r'[0-9][0-9.]*', 'n', problem.message)}"
