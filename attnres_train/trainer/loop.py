"""The training loop: step, record, evaluate, save, until the last step or a signal."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from attnres_train.checkpoint.choose import Choice
from attnres_train.checkpoint.folder import checkpoints_folder
from attnres_train.checkpoint.save import RunIdentity
from attnres_train.checkpoint.space import check_space
from attnres_train.config.run_config import RunConfig
from attnres_train.data.ahead import StepLoader
from attnres_train.data.continuation import other_validation
from attnres_train.data.validation import ValidationData
from attnres_train.errors import ExitCode
from attnres_train.observe.claim import Claim
from attnres_train.observe.console import CONSOLE
from attnres_train.observe.depth_watch import DepthWatch
from attnres_train.observe.metrics import VALIDATION_TAG, MfuTerms
from attnres_train.observe.presence import Presence
from attnres_train.observe.profiling import Profiling
from attnres_train.observe.recorder import Recorder, recorded_tags
from attnres_train.observe.settings_history import keep_history
from attnres_train.observe.sinks import keep_text
from attnres_train.parallel.grid import Grid
from attnres_train.progress import TrainState
from attnres_train.trainer.build import Parts
from attnres_train.trainer.closing import closing
from attnres_train.trainer.config import last_step_of
from attnres_train.trainer.evaluation import evaluate
from attnres_train.trainer.resume import resume
from attnres_train.trainer.saving import Saves
from attnres_train.trainer.signals import StopRequest
from attnres_train.trainer.skipped import SkippedSteps
from attnres_train.trainer.step import train_step

log = logging.getLogger(CONSOLE)


@dataclass(frozen=True)
class Run:
    """Everything a run is made of."""

    config: RunConfig
    grid: Grid
    parts: Parts
    loader: StepLoader
    validation: Mapping[str, ValidationData]
    """By name, as in `Corpora`."""
    identity: RunIdentity
    texts: Mapping[str, str]
    """What the run folder says of the run, by file: the configuration as commented TOML, the facts of the model."""
    folder: Path
    checkpoint: Choice | None
    """Where to continue from; None starts at step 0."""
    mfu: MfuTerms
    stop: StopRequest
    presence: Presence
    claim: Claim | None = None
    """Of the run folder; rank 0 has it."""


def train(run: Run) -> ExitCode:
    """Train to the last step, or to the step after a stop signal; either way the last state is saved.

    An evaluation that a checkpoint still owes comes first: a signal, or a kill after the save, came between.
    """
    last_step = last_step_of(run.config.training)
    run.presence.at("loading")
    state = resume(run.checkpoint, run.parts.engine, run.grid, run.identity, run.config.checkpoint.allow, run.folder)
    first_step = state.step
    recorded = recorded_tags(run.grid, run.folder, state.step)
    owed = _owes_evaluation(run, state, recorded)
    if state.step >= last_step:
        if not owed:
            _say(closing(run.config, run.folder, state, stopped=False, trained=False))
            return ExitCode.DONE
    else:
        check_space(checkpoints_folder(run.folder), run.parts.engine, run.grid)
        if run.grid.keeps_run:
            _keep_texts(run, [name for name in run.texts if not (run.folder / name).exists()])
    recorder = Recorder(run.config, run.grid, run.folder, state, run.mfu)
    run.stop.training_begins()
    stopped = _evaluate(run, recorder, state, recorded) if owed else False
    if not stopped:
        state, stopped = _steps(run, recorder, state, last_step)
    recorder.close()
    _say(closing(run.config, run.folder, state, stopped=stopped, trained=state.step > first_step))
    return ExitCode.STOPPED_ON_SIGNAL if stopped else ExitCode.DONE


def _steps(run: Run, recorder: Recorder, state: TrainState, last_step: int) -> tuple[TrainState, bool]:
    """Train from `state` on; the state at the end, which is saved, and whether a signal asked for it."""
    config = run.config
    saves = Saves(run.folder, run.parts.engine, run.grid, run.identity, config.checkpoint, recorder)
    watch = DepthWatch(run.parts.stages, run.grid)
    profiling = Profiling(config.observe, run.folder, run.grid.rank, run.grid.device)
    skipped = SkippedSteps(config.training.stop_after_skipped_steps)
    stopped, began = False, state.step
    while state.step < last_step and not stopped:
        run.presence.at("training", state.step + 1)
        votes = {"stop": run.stop.asked(), **saves.votes()}
        looks = _looks(state.step + 1, config)
        with watch.looking() if looks else nullcontext(), profiling.around(state.step + 1):
            state, report, batches = train_step(run.parts, run.loader, config, state, votes)
        stopped = report.votes["stop"] > 0 and state.step < config.training.steps
        claimed_anew = run.claim is not None and run.claim.renew()
        recorder.step(state, report, [batch.sample_ids for batch in batches], last=stopped or state.step == last_step)
        if run.grid.keeps_run and (claimed_anew or state.step == began + 1):
            _keep_settings(run, recorder, state.step - 1)
        if looks:
            recorder.depth(state, watch.collect())
        saves.advance(report.votes)
        if enough := skipped.look_at(state, report):
            saves.finish()
            raise RuntimeError(enough)
        if not stopped and _evaluation_due(run, state.step):
            stopped = _evaluate(run, recorder, state)
        if _due(state.step, config.checkpoint.interval_steps) or stopped or state.step == last_step:
            run.presence.at("saving")
            saves.start(state)
    profiling.finish(state.step)
    run.presence.at("finishing the last checkpoint")
    saves.finish()
    return state, stopped


def _evaluation_due(run: Run, step: int) -> bool:
    at_the_end = step >= last_step_of(run.config.training)
    return bool(run.validation) and (at_the_end or _due(step, run.config.training.eval_interval_steps))


def _owes_evaluation(run: Run, state: TrainState, recorded: Collection[str]) -> bool:
    """Whether the state that was resumed was to be evaluated and was not, or is the last and has other validation data
    than it was evaluated on."""
    if run.checkpoint is None or run.checkpoint.weights_only or not _evaluation_due(run, state.step):
        return False
    if VALIDATION_TAG not in recorded:
        return True
    identity, were = run.identity, run.checkpoint.manifest.fingerprints
    at_the_end = state.step >= last_step_of(run.config.training)
    return at_the_end and other_validation(were, identity.settings, identity.fingerprints)


def _evaluate(run: Run, recorder: Recorder, state: TrainState, recorded: Collection[str] = ()) -> bool:
    """Evaluate and record what is not `recorded` of this step; whether a signal asks to stop here.

    One that comes when the last step and its evaluation are done has nothing left to stop.
    """
    run.presence.at("evaluation")
    started = time.perf_counter()
    found = evaluate(run.parts, run.validation, run.config.training.micro_batch_size, run.stop.asked)
    if found.losses is None:
        log.info(f"step {state.step}  the evaluation was cut short by a signal: nothing of it is recorded")
        return True
    per_byte = {name: data.tokens_per_byte for name, data in run.validation.items()}
    recorder.evaluation(state, found.losses, per_byte, time.perf_counter() - started, recorded)
    return found.stop_requested and state.step < last_step_of(run.config.training)


def _say(lines: list[str]) -> None:
    for line in lines:
        log.info(line)


def _keep_settings(run: Run, recorder: Recorder, began: int) -> None:
    """Only once the step after `began` has been trained with them: a launch that trains nothing leaves the folder as
    it was."""
    _keep_texts(run, run.texts)
    changed = keep_history(run.folder, began, run.grid.world_size, run.identity.settings)
    if changed is not None:
        recorder.text(began + 1, "settings", changed)


def _keep_texts(run: Run, names: Collection[str]) -> None:
    for name in names:
        keep_text(run.folder / name, run.texts[name])


def _looks(step: int, config: RunConfig) -> bool:
    """Whether the depth is looked at: at the interval, and at the end of a run too short for one."""
    interval = config.observe.depth_interval
    return _due(step, interval) or (interval is not None and step == config.training.steps < interval)


def _due(step: int, interval_steps: int | None) -> bool:
    return interval_steps is not None and step % interval_steps == 0
