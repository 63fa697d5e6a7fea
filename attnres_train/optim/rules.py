"""Rules of the `[schedule]` section, against `[optimizer]` and `training.steps`."""

from __future__ import annotations

from collections.abc import Iterator

from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem, Unused
from attnres_train.words import counted


def problems(config: RunConfig, world: int | None) -> Iterator[Problem]:
    """Problems of the rates, the warm-up and the decay."""
    yield from _rates(config)
    yield from _warmup(config)
    yield from _decay(config)


def schedule_fits(config: RunConfig) -> bool:
    """Whether warm-up and, for `wsd`, decay find room in `training.steps`."""
    schedule = config.schedule
    decay = schedule.decay_steps or 0 if schedule.kind == "wsd" else 0
    return schedule.warmup_steps + decay <= config.training.steps


def _rates(config: RunConfig) -> Iterator[Problem]:
    floor, peak = config.schedule.min_learning_rate, config.optimizer.learning_rate
    if floor > peak:
        message = f"{floor:g} is above optimizer.learning_rate = {peak:g}"
        yield Problem("schedule.min_learning_rate", message, f"write {peak:g} or less")


def _warmup(config: RunConfig) -> Iterator[Problem]:
    warmup, steps = config.schedule.warmup_steps, config.training.steps
    if warmup > steps:
        message = f"{counted(warmup, 'step')} of warm-up, but training.steps = {steps}"
        yield Problem("schedule.warmup_steps", message, f"write {steps} or less, or raise training.steps")


def _decay(config: RunConfig) -> Iterator[Problem]:
    schedule, steps = config.schedule, config.training.steps
    decay, warmup = schedule.decay_steps, min(schedule.warmup_steps, steps)
    key = "schedule.decay_steps"
    if schedule.kind == "wsd":
        longest = steps - warmup
        if decay is None:
            remedy = f"write schedule.decay_steps = {max(1, min(longest, steps // 10))} for the last tenth"
            yield Problem(key, 'not set, but schedule.kind = "wsd" ends in a decay of this many steps', remedy)
        elif decay > longest:
            message = f"{decay}, but only training.steps {steps} - warmup_steps {warmup} = {longest} are left"
            yield Problem(key, message, f"write {longest} or less" if longest else "shorten the warm-up")
    elif decay is not None and schedule.kind == "constant":
        message = f'{decay}, but schedule.kind = "constant" never decays'
        remedy = 'remove it (or write "none"), or choose "cosine" or "wsd"'
        yield Unused(key, message, remedy, made_by=("schedule.kind",))
    elif decay is not None and decay <= warmup and warmup > 0:
        message = f"{decay} is the step at which the cosine ends, but the warm-up takes {counted(warmup, 'step')}"
        yield Problem(key, message, f"write more than {warmup}, or leave it out to decay until step {steps}")
