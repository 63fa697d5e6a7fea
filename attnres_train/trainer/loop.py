"""The training loop: step, record, evaluate, save, until the last step or a signal."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from attnres_train.checkpoint.choose import Choice
from attnres_train.checkpoint.folder import checkpoints_folder
from attnres_train.checkpoint.save import RunIdentity
from attnres_train.checkpoint.space import check_space
from attnres_train.config.run_config import RunConfig
from attnres_train.data.ahead import StepLoader
from attnres_train.data.corpus import ValidationData
from attnres_train.errors import ExitCode
from attnres_train.observe.console import CONSOLE
from attnres_train.observe.depth_watch import DepthWatch
from attnres_train.observe.metrics import Rates
from attnres_train.observe.presence import Presence
from attnres_train.observe.profiling import Profiling
from attnres_train.observe.recorder import Recorder
from attnres_train.observe.settings_history import keep_history
from attnres_train.observe.sinks import keep_text
from attnres_train.parallel.grid import Grid
from attnres_train.trainer.build import Parts
from attnres_train.trainer.evaluation import evaluate
from attnres_train.trainer.resume import resume
from attnres_train.trainer.saving import Saves
from attnres_train.trainer.signals import StopRequest
from attnres_train.trainer.skipped import SkippedSteps
from attnres_train.trainer.step import train_step

log = logging.getLogger(CONSOLE)
CONFIG = "config.toml"


@dataclass(frozen=True)
class Run:
    """Everything a run is made of."""

    config: RunConfig
    grid: Grid
    parts: Parts
    loader: StepLoader
    validation: ValidationData | None
    identity: RunIdentity
    resolved: str
    """The configuration as a commented TOML file, for the run folder."""
    folder: Path
    checkpoint: Choice | None
    """Where to continue from; None starts at step 0."""
    rates: Rates
    stop: StopRequest
    presence: Presence


def train(run: Run) -> ExitCode:
    """Train to the last step, or to the step after a stop signal; either way the last state is saved."""
    steps = run.config.training.steps
    last_step = min(run.config.training.stop_after_steps or steps, steps)
    run.presence.at("loading")
    state = resume(run.checkpoint, run.parts.engine, run.grid, run.identity, run.config.checkpoint.allow, run.folder)
    if state.step >= last_step:
        what = "complete" if state.step >= steps else "training.stop_after_steps is reached"
        log.info(f"{what}: {state.step} of {steps} steps are done, nothing to train")
        return ExitCode.DONE
    check_space(checkpoints_folder(run.folder), run.parts.engine, run.grid)
    if run.grid.rank == 0 and not (run.folder / CONFIG).exists():
        keep_text(run.folder / CONFIG, run.resolved)
    recorder = Recorder(run.config, run.grid, run.folder, state, run.rates)
    saves = Saves(run.folder, run.parts.engine, run.grid, run.identity, run.config.checkpoint, recorder)
    watch = DepthWatch(run.parts.stages, run.grid)
    profiling = Profiling(run.config.observe, run.folder, run.grid.rank, run.grid.device)
    skipped = SkippedSteps(run.config.training.stop_after_skipped_steps)
    stopped, began = False, state.step
    run.stop.training_begins()
    while state.step < last_step and not stopped:
        run.presence.at("training", state.step + 1)
        asked = run.stop.received is not None
        looks = _due(state.step + 1, run.config.observe.depth_interval)
        with watch.looking() if looks else nullcontext(), profiling.around(state.step + 1):
            state, report, batches = train_step(run.parts, run.loader, run.config, state, asked, saves.standing)
        stopped = report.stop_requested and state.step < steps
        ended = stopped or state.step == last_step
        recorder.step(state, report, [batch.sample_ids for batch in batches], last=ended)
        if state.step == began + 1 and run.grid.rank == 0:
            _keep_settings(run, recorder, began)
        if looks:
            recorder.depth(state, watch.collect())
        saves.advance(report)
        if enough := skipped.look_at(state, report):
            saves.finish()
            raise RuntimeError(enough)
        evaluates = _due(state.step, run.config.training.eval_interval_steps) or (ended and not stopped)
        if run.validation is not None and evaluates:
            run.presence.at("evaluation")
            started = time.perf_counter()
            loss = evaluate(run.parts, run.validation, run.config.training.micro_batch_size)
            recorder.evaluation(state, loss, run.validation.tokens_per_byte, time.perf_counter() - started)
        if _due(state.step, run.config.checkpoint.interval_steps) or ended:
            run.presence.at("saving")
            saves.start(state)
    profiling.finish(state.step)
    run.presence.at("finishing the last checkpoint")
    saves.finish()
    recorder.close()
    if stopped:
        log.info(f"stopped on a signal after step {state.step}; {_how_to_go_on(run.config.checkpoint.resume)}")
        return ExitCode.STOPPED_ON_SIGNAL
    return ExitCode.DONE


def _keep_settings(run: Run, recorder: Recorder, began: int) -> None:
    """Only once a step has been trained with them: a launch that trains nothing leaves the folder as it was."""
    keep_text(run.folder / CONFIG, run.resolved)
    changed = keep_history(run.folder, began, run.grid.world_size, run.identity.settings)
    if changed is not None:
        recorder.text(began + 1, "settings", changed)


def _how_to_go_on(resume: str) -> str:
    if resume in ("auto", "must"):
        return "run the same command to go on"
    return 'run the same command with checkpoint.resume = "auto" to go on'


def _due(step: int, interval_steps: int | None) -> bool:
    return interval_steps is not None and step % interval_steps == 0
