"""A checked run on one rank: join the others, build every part, train."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from attnres_train.checkpoint.choose import Choice, choose_checkpoint
from attnres_train.checkpoint.fit import nothing_to_train
from attnres_train.checkpoint.save import RunIdentity
from attnres_train.checkpoint.whole import Damaged
from attnres_train.config.load import Loaded
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import config_values, resolved_toml
from attnres_train.corpora import Corpora
from attnres_train.data.ahead import ReadAhead
from attnres_train.data.loader import BatchLoader
from attnres_train.depth.describe import backend_in_words, default_device_type, why_no_backend
from attnres_train.errors import ExitCode, Problem, Refused, refuse
from attnres_train.model.size import flops_in_words
from attnres_train.observe.claim import Claim
from attnres_train.observe.console import CONSOLE
from attnres_train.observe.metrics import MfuTerms
from attnres_train.observe.presence import Presence
from attnres_train.parallel.grid import Grid, build_grid, stop_process_group
from attnres_train.plan.devices import device_called
from attnres_train.setup import FACTS, Setup
from attnres_train.trainer.build import build_parts
from attnres_train.trainer.config import last_step_of
from attnres_train.trainer.loop import Run, train
from attnres_train.trainer.numerics import numerics_in_words, settle_numerics
from attnres_train.trainer.preflight import join, limit_waits, preflight
from attnres_train.trainer.signals import StopRequest
from attnres_train.words import counted

log = logging.getLogger(CONSOLE)


def run(loaded: Loaded, folder: Path, corpora: Corpora, stop: StopRequest, presence: Presence) -> ExitCode:
    """Train in `folder`, from the checkpoint that the configuration asks for."""
    config, training = loaded.config, loaded.config.training
    settle_numerics(training, default_device_type())
    join(config.parallel.timeout_seconds, presence)
    grid = build_grid(config.parallel, training.seed)
    limit_waits(config.parallel.timeout_seconds)
    presence.at("preflight")
    if reason := why_no_backend(config.residual, grid.device.type, training.precision):
        raise refuse("residual.backend", f"{config.residual.backend!r}: {reason}", 'write "auto"')
    backend = backend_in_words(config.residual, grid.device.type, training.precision)
    settings = config_values(config, loaded.origins)
    preflight(settings, corpora.same_on_all_ranks(training.seed), backend, folder, grid)
    claim = _claim(folder, grid)
    setup = Setup.of(config, grid.world_size)
    _announce(setup, grid, backend)
    for line in (*numerics_in_words(training, grid.device.type), *loaded.notes):
        log.info(line)
    texts = {
        "config.toml": resolved_toml(config, loaded.origins),
        FACTS: json.dumps(setup.facts, indent=2) + "\n",
    }
    mfu = MfuTerms(setup.flops_per_token, _peak(grid, training.precision))
    run_of = partial(
        Run, config=config, grid=grid, validation=corpora.valid, texts=texts, folder=folder, mfu=mfu, stop=stop,
        presence=presence, claim=claim,
    )  # fmt: skip
    damaged: dict[Path, Sequence[str]] = {}
    while (outcome := _train(run_of, setup, corpora, settings, damaged, grid, presence, folder)) is None:
        gc.collect()  # the model that a part of a damaged checkpoint was read into
    stop_process_group()
    return outcome


def _train(
    run_of: Callable[..., Run],
    setup: Setup,
    corpora: Corpora,
    settings: Mapping[str, Any],
    damaged: dict[Path, Sequence[str]],
    grid: Grid,
    presence: Presence,
    folder: Path,
) -> ExitCode | None:
    """Train from the newest checkpoint that is not known as `damaged`; None where its load finds that it is.

    It is added then, and all is built anew for the next one, so that nothing of a damaged checkpoint stays.
    """
    config, training = setup.config, setup.config.training
    presence.at("choosing a checkpoint")
    resume, load = config.checkpoint.resume, config.checkpoint.load
    checkpoint = choose_checkpoint(resume, folder, grid, damaged, load)
    if checkpoint is not None and _nothing_to_train(checkpoint, settings):
        # Nothing will be loaded, and so found to be damaged: every byte is read before a refusal rests on it.
        checkpoint = choose_checkpoint(resume, folder, grid, load=load)
    if checkpoint is not None and (pointless := _nothing_to_train(checkpoint, settings)):
        raise Refused(pointless)
    for line in _data_lines(config, corpora, checkpoint):
        log.info(line)
    draw = training.seed if checkpoint is None else checkpoint.draw_of_data(training.seed)
    origin = None if checkpoint is None else checkpoint.origin
    identity = RunIdentity(setup.layers_per_stage, corpora.fingerprints(draw), settings, origin)
    batches = BatchLoader(
        corpora.train, training.global_batch_size, training.micro_batch_size, grid.data_rank, grid.data
    )
    presence.at("building the model")
    with ReadAhead(batches, training.global_batch_size) as loader:
        parts = build_parts(setup, grid)
        try:
            return train(run_of(parts=parts, loader=loader, identity=identity, checkpoint=checkpoint))
        except Damaged as found:
            damaged[found.folder] = found.texts
            return None


def _nothing_to_train(checkpoint: Choice, settings: Mapping[str, Any]) -> list[Problem]:
    return [] if checkpoint.weights_only else nothing_to_train(checkpoint.manifest, settings)


def _claim(folder: Path, grid: Grid) -> Claim | None:
    """Claim the run folder, on rank 0 for all; a refusal is raised on every rank. It holds as long as it is kept."""
    claim: Claim | None = None
    problems: list[Sequence[Problem] | None] = [None]
    if grid.keeps_run:
        try:
            claim = Claim(folder)
        except Refused as refusal:
            problems = [refusal.problems]
    dist.broadcast_object_list(problems, src=0, group=grid.control)
    if problems[0] is not None:
        raise Refused(problems[0])
    return claim


def _peak(grid: Grid, precision: str) -> float | None:
    """Dense FLOP/s of this rank's device, where its data sheet is known; said once, with the name."""
    if grid.device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(grid.device)
    device = device_called(name)
    if device is None:
        log.info(f"no peak is known of {name}: no throughput/mfu")
        return None
    peak = device.peak_flops_per_second(precision)
    log.info(f"throughput/mfu is the share of {peak / 1e12:,.0f} TFLOP/s, the dense {precision} peak of {name}")
    return peak


def _announce(setup: Setup, grid: Grid, backend: str) -> None:
    """The facts of a run in a few lines, before the first step."""
    config, parallel, training = setup.config, setup.config.parallel, setup.config.training
    log.info(
        f"{counted(setup.world, 'rank')}: tensor {parallel.tensor}, pipeline {parallel.pipeline} x "
        f"{parallel.virtual}, data {setup.data}; layers a stage {setup.layers_per_stage}; "
        f"residual {config.residual.mode}"
    )
    log.info(f"depth backend: {backend}")
    log.info(flops_in_words(config.model, setup.padded_vocabulary, training.sequence_length))
    log.info(
        f"vocabulary {setup.vocabulary}, padded to {setup.padded_vocabulary}; {training.precision} on {grid.device}"
    )


def _data_lines(config: RunConfig, corpora: Corpora, checkpoint: Choice | None) -> list[str]:
    steps, samples = (0, 0) if checkpoint is None else (checkpoint.step, checkpoint.samples)
    still = max(0, last_step_of(config.training) - steps) * config.training.global_batch_size
    lines = [str(source) for source in corpora.train.summary(samples + still, samples)]
    lines.append(f"order of samples: {corpora.train.fingerprint[:12]} on every rank")
    lines += [f"validation{' ' * bool(name)}{name}: {len(data):,} samples" for name, data in corpora.valid.items()]
    if config.data.isolate_documents:
        lines.append("attention stays inside documents")
    return lines + corpora.notes
