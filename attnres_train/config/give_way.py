"""What the command line leaves without meaning in the file gives way to it, and is told.

A file is written for one mode, size or length; `--residual.mode standard` says nothing of the block size that it
holds. A value gives way only where the file alone states it and the command line alone made it senseless: two that
contradict each other in one place are refused. What fits is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnres_train.config.build import show_value
from attnres_train.config.keys import Key
from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem, Unused
from attnres_train.optim.rules import schedule_fits
from attnres_train.words import counted

COMMAND_LINE = "command line"
DEFAULT = "default"

_SCHEDULE = "schedule.kind"
_STEPS = "training.steps"


@dataclass(frozen=True)
class Settled:
    """A configuration whose file has given way; `notes` tell each value that did."""

    config: RunConfig
    origins: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def with_value(self, dotted: str, value: Any, note: str, how: str) -> Settled:
        """With another value of a key of the file."""
        place = self.origins[dotted]
        notes = (*self.notes, f"{dotted}: {note} ({place}): {how}")
        origins = {**self.origins, dotted: f"{place}, {how}"}
        return Settled(_with(self.config, dotted.split("."), value), origins, notes)

    def is_from_file(self, dotted: str) -> bool:
        return self.origins.get(dotted, DEFAULT) not in (COMMAND_LINE, DEFAULT)


def give_way(
    config: RunConfig,
    origins: Mapping[str, str],
    hidden: Mapping[str, Any],
    keys: Mapping[str, Key],
    rules: Callable[[RunConfig], Sequence[Problem]],
) -> Settled:
    """`config` with what gives way. `hidden` are values of the file that the command line replaced, by key; `rules`
    tell the problems of a configuration."""
    settled = _scaled(_of_another_schedule(Settled(config, origins), hidden), hidden)
    while (unused := _unused(settled, rules(settled.config))) is not None:
        if unused.instead is None:
            settled = settled.with_value(unused.key, keys[unused.key].default, unused.message, "left out")
        else:
            how = f"{show_value(unused.instead)} instead"
            settled = settled.with_value(unused.key, unused.instead, unused.message, how)
    return settled


def _unused(settled: Settled, problems: Sequence[Problem]) -> Unused | None:
    """The first value of the file that the command line leaves without meaning."""
    for problem in problems:
        if isinstance(problem, Unused) and settled.is_from_file(problem.key):
            if any(settled.origins[key] == COMMAND_LINE for key in problem.made_by):
                return problem
    return None


def _of_another_schedule(settled: Settled, hidden: Mapping[str, Any]) -> Settled:
    """A decay that the file states for another kind of schedule, which counts it from the other end."""
    schedule, key = settled.config.schedule, "schedule.decay_steps"
    was = hidden.get(_SCHEDULE, schedule.kind)
    if was == schedule.kind or schedule.decay_steps is None or not settled.is_from_file(key):
        return settled
    note = f"{schedule.decay_steps}, for kind {show_value(was)}, but {_SCHEDULE} = {show_value(schedule.kind)}"
    return settled.with_value(key, None, note, "left out")


def _scaled(settled: Settled, hidden: Mapping[str, Any]) -> Settled:
    """Warm-up and decay of the file in its own proportions, where they do not fit the steps of the command line."""
    before, now = hidden.get(_STEPS), settled.config.training.steps
    if not isinstance(before, int) or schedule_fits(settled.config):
        return settled
    schedule = settled.config.schedule
    wanted = {
        "schedule.warmup_steps": schedule.warmup_steps * now // before,
        "schedule.decay_steps": None if schedule.decay_steps is None else -(-schedule.decay_steps * now // before),
    }
    for key, value in wanted.items():
        stated = getattr(schedule, key.partition(".")[2])
        if stated != value and settled.is_from_file(key):
            note = f"{stated} of {counted(before, 'step')}, but {_STEPS} = {now}"
            settled = settled.with_value(key, value, note, f"{value}, in proportion")
    return settled


def _with(section: Any, names: list[str], value: Any) -> Any:
    """A frozen `section` with another value of the key down `names`."""
    first, *rest = names
    return replace(section, **{first: _with(getattr(section, first), rest, value) if rest else value})
