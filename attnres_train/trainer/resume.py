"""Going on from a checkpoint, and saying what is different from now on."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from attnres_train.checkpoint.choose import Choice
from attnres_train.checkpoint.fit import changed_settings
from attnres_train.checkpoint.load import load_checkpoint
from attnres_train.checkpoint.save import RunIdentity
from attnres_train.data.config import blend_weights
from attnres_train.data.continuation import continuation, other_validation
from attnres_train.engine.interface import Engine
from attnres_train.observe.console import CONSOLE
from attnres_train.optim.config import OptimizerConfig, ScheduleConfig
from attnres_train.optim.schedule import learning_rate
from attnres_train.parallel.grid import Grid
from attnres_train.progress import TrainState

log = logging.getLogger(CONSOLE)
Section = TypeVar("Section", OptimizerConfig, ScheduleConfig)


def resume(
    checkpoint: Choice | None, engine: Engine, grid: Grid, identity: RunIdentity, allow: Collection[str], folder: Path
) -> TrainState:
    """The state to start from, loaded into the engine. A collective.

    Raises Refused where the checkpoint does not fit.
    """
    if checkpoint is None:
        log.info(f"starting at step 0: no checkpoint in {folder}")
        return TrainState()
    source, manifest, passed_over, weights_only = checkpoint
    for text in passed_over:
        log.warning(f"passing over {text}")
    mine = (identity.fingerprints, identity.settings)
    state, accepted = load_checkpoint(source, manifest, engine, grid, *mine, allow, weights_only)
    if weights_only:
        log.info(f"beginning at step 0 with the weights of {source}, which is at step {manifest.step}")
        log.info("  all else is new: moments, schedule, order of the data, random state, counts of steps and samples")
    else:
        log.info(f"resuming from {source} at step {state.step}, sample {state.samples}")
    for line in dict.fromkeys(f"{one.allowed_as}: {one.problem.key}: {one.problem.message}" for one in accepted):
        log.warning(f"  accepted as {line}")
    if weights_only:
        return state
    if any(difference.allowed_as == "data" for difference in accepted):
        for line in _data_lines(manifest.settings, manifest.fingerprints, identity, state.samples):
            log.warning(f"    {line}")
    if other_validation(manifest.fingerprints, identity.settings, identity.fingerprints):
        log.warning("  data.valid has other samples than before: loss/valid does not go on from the values it had")
    for key, (was, now) in changed_settings(manifest.settings, identity.settings).items():
        log.info(f"  {key}: was {was!r}, is {now!r} from now on")
    for line in batch_lines(manifest.settings, identity.settings):
        log.info(f"  {line}")
    for line in rate_lines(manifest.settings, identity.settings, state.step + 1):
        log.info(f"  {line}")
    return state


def _data_lines(
    settings: Mapping[str, Any], fingerprints: Mapping[str, str], identity: RunIdentity, position: int
) -> list[str]:
    was, now = settings.get("data.train"), identity.settings["data.train"]
    if was is None:
        return []
    return continuation(
        position, blend_weights(was), blend_weights(now), _of_sources(fingerprints), _of_sources(identity.fingerprints)
    )


def _of_sources(fingerprints: Mapping[str, str]) -> dict[str, str]:
    mark = "source "
    return {key.removeprefix(mark): value for key, value in fingerprints.items() if key.startswith(mark)}


def batch_lines(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What another batch size means for the schedule and for the position in the data."""
    key = "training.global_batch_size"
    if key in was and was[key] != now[key]:
        yield (
            f"the learning rate counts steps, not samples: from here a step moves it as before and takes {now[key]} "
            f"samples instead of {was[key]}; the data go on at the next sample"
        )


def rate_lines(was: Mapping[str, Any], now: Mapping[str, Any], step: int) -> Iterator[str]:
    """What changed settings do to the learning rate, whose every value follows from the new settings alone."""
    if not {"training.steps", "optimizer.learning_rate"} <= was.keys() & now.keys():
        return
    before, after = _rate(was, step), _rate(now, step)
    if before != after:
        yield f"learning rate of step {step}: would have been {before:.6g}, is {after:.6g}"
    if was["training.steps"] != now["training.steps"] and now.get("schedule.kind") != "constant":
        if now.get("schedule.kind") == "wsd" or now.get("schedule.decay_steps") is None:
            yield f"the decay goes along: it ends at training.steps = {now['training.steps']}"
        else:
            end = now["schedule.decay_steps"]
            nothing = _rate(now, now["training.steps"]) == 0 and end < now["training.steps"]
            why = f", and the rate is 0 from step {end + 1} on: nothing is learnt there unless you raise it"
            yield f"the decay is kept: it ends at schedule.decay_steps = {end}{why if nothing else ''}"


def _rate(settings: Mapping[str, Any], step: int) -> float:
    optimizer, schedule = _section(OptimizerConfig, settings), _section(ScheduleConfig, settings)
    return learning_rate(optimizer, schedule, settings["training.steps"], step)


def _section(kind: type[Section], settings: Mapping[str, Any]) -> Section:
    """The section of `kind` as `settings` have it; what another version has besides does not matter here."""
    name = {OptimizerConfig: "optimizer", ScheduleConfig: "schedule"}[kind]
    known = {field.name for field in fields(kind)}
    return kind(**{key: settings[f"{name}.{key}"] for key in known if f"{name}.{key}" in settings})
