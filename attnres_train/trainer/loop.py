"""The training loop: step, record, evaluate, save, until the last step or a signal."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnres_train.checkpoint.load import changed_settings, load_checkpoint
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.checkpoint.save import save_checkpoint
from attnres_train.config.run_config import RunConfig
from attnres_train.data.corpus import ValidationData
from attnres_train.data.loader import BatchLoader
from attnres_train.errors import ExitCode
from attnres_train.observe.console import CONSOLE
from attnres_train.observe.recorder import Recorder
from attnres_train.parallel.grid import Grid
from attnres_train.progress import TrainState
from attnres_train.trainer.build import Parts
from attnres_train.trainer.evaluation import evaluate
from attnres_train.trainer.signals import StopRequest
from attnres_train.trainer.step import train_step

log = logging.getLogger(CONSOLE)


@dataclass(frozen=True)
class Run:
    """Everything a run is made of."""

    config: RunConfig
    grid: Grid
    parts: Parts
    loader: BatchLoader
    validation: ValidationData | None
    fingerprints: dict[str, str]
    settings: dict[str, Any]
    """The configuration by dotted key, kept in every checkpoint."""
    resolved: str
    """The same as a commented TOML file, for the run folder."""
    folder: Path
    checkpoint: Path | None
    """Where to continue from; None starts at step 0."""
    flops_per_token: float
    stop: StopRequest


def train(run: Run) -> ExitCode:
    """Train to the last step, or to the step after a stop signal; either way the last state is saved."""
    steps = run.config.training.steps
    last_step = min(run.config.training.stop_after_steps or steps, steps)
    state = resume(run)
    if run.grid.rank == 0:  # only now: a resume that was refused leaves the folder as it was
        (run.folder / "config.toml").write_text(run.resolved, encoding="utf-8")
    if state.step >= last_step:
        what = "complete" if state.step >= steps else "training.stop_after_steps is reached"
        log.info(f"{what}: {state.step} of {steps} steps are done, nothing to train")
        return ExitCode.DONE
    recorder = Recorder(run.config, run.grid, run.folder, state, run.flops_per_token)
    stopped = False
    while state.step < last_step and not stopped:
        state, report, batches = train_step(run.parts, run.loader, run.config, state, run.stop.received is not None)
        stopped = report.stop_requested and state.step < steps
        ended = stopped or state.step == last_step
        recorder.step(state, report, [batch.sample_ids for batch in batches], last=ended)
        if run.validation is not None and _due(state, run.config.training.eval_interval_steps, ended and not stopped):
            started = time.perf_counter()
            loss = evaluate(run.parts, run.validation, run.config.training.micro_batch_size)
            recorder.evaluation(state, loss, time.perf_counter() - started)
        if _due(state, run.config.checkpoint.interval_steps, ended):
            started = time.perf_counter()
            folder = save(run, state)
            recorder.checkpoint(state, folder, time.perf_counter() - started)
    recorder.close()
    if stopped:
        log.info(f"stopped on a signal after step {state.step}; run the same command to go on")
        return ExitCode.STOPPED_ON_SIGNAL
    return ExitCode.DONE


def resume(run: Run) -> TrainState:
    """The state to start from."""
    if run.checkpoint is None:
        log.info(f"starting at step 0: no checkpoint in {run.folder}")
        return TrainState()
    manifest = read_manifest(run.checkpoint)
    state = load_checkpoint(run.checkpoint, manifest, run.parts.engine, run.grid, run.fingerprints, run.settings)
    log.info(f"resuming from {run.checkpoint} at step {state.step}, sample {state.samples}")
    for key, (was, now) in changed_settings(manifest.settings, run.settings).items():
        log.info(f"  {key}: was {was!r}, is {now!r} from now on")
    return state


def save(run: Run, state: TrainState) -> Path:
    """Publish the checkpoint of `state`."""
    return save_checkpoint(
        run.folder,
        run.parts.engine,
        run.grid,
        state,
        layers_per_stage=run.parts.pipeline.plan.layers_per_stage,
        fingerprints=run.fingerprints,
        settings=run.settings,
        keep=run.config.checkpoint.keep,
    )


def _due(state: TrainState, interval_steps: int | None, ended: bool) -> bool:
    return ended or (interval_steps is not None and state.step % interval_steps == 0)
