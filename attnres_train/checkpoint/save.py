"""Saving as a transaction: write aside, all ranks vote, one rename publishes."""

from __future__ import annotations

import datetime
import logging
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from attnres_train import __version__
from attnres_train.checkpoint.folder import (
    checkpoint_name,
    checkpoints_folder,
    keep_newest,
    partial_folder,
    remove_leftovers,
    replace_published,
)
from attnres_train.checkpoint.manifest import Manifest, write_manifest
from attnres_train.checkpoint.random_state import save_random_state
from attnres_train.checkpoint.sharded import CheckpointFailure, save_states, whole_shapes
from attnres_train.durable import flush_folder
from attnres_train.engine.interface import Engine
from attnres_train.parallel.grid import Grid
from attnres_train.progress import TrainState

log = logging.getLogger(__name__)


def save_checkpoint(
    run_folder: Path,
    engine: Engine,
    grid: Grid,
    state: TrainState,
    *,
    layers_per_stage: tuple[int, ...],
    fingerprints: Mapping[str, str],
    settings: Mapping[str, Any],
    keep: int | None,
) -> Path:
    """Write and publish the checkpoint of `state`; a collective. Returns its folder.

    `settings` is the run's configuration by dotted key, so that a later run can say what changed.

    Raises RuntimeError on every rank, with nothing published, if any rank could not write its part.
    """
    checkpoints = checkpoints_folder(run_folder)
    partial = partial_folder(checkpoints, state.step)
    published = checkpoints / checkpoint_name(state.step)
    if grid.rank == 0:
        checkpoints.mkdir(parents=True, exist_ok=True)
        remove_leftovers(checkpoints)
        partial.mkdir()
    dist.barrier(group=grid.control)
    shapes = whole_shapes(engine.parameters(), grid)
    failure = _write(partial, engine, grid)
    _vote(grid, failure, partial)
    if grid.rank == 0:
        manifest = _manifest(partial, engine, grid, state, layers_per_stage, fingerprints, settings, shapes)
        failure = _publish(partial, published, manifest)
    _vote(grid, failure, partial)
    if grid.rank == 0:
        keep_newest(checkpoints, keep)
    return published


def _write(partial: Path, engine: Engine, grid: Grid) -> str | None:
    """Write this rank's part; returns the failure in words, so that all ranks can be told of it."""
    try:
        save_states(partial, engine.parameters(), engine.export_state(), grid)
        save_random_state(partial, grid)
    except (OSError, CheckpointFailure) as error:
        log.exception("writing to %s failed", partial)
        return f"{grid}: {error}"
    return None


def _publish(partial: Path, published: Path, manifest: Manifest) -> str | None:
    """Make the checkpoint whole and give it its name; returns the failure in words. On rank 0."""
    try:
        write_manifest(partial, manifest)
        replace_published(partial, published)
        flush_folder(published.parent)
    except OSError as error:
        log.exception("publishing %s failed", published)
        return f"rank 0: {error}"
    return None


def _vote(grid: Grid, failure: str | None, partial: Path) -> None:
    failures: list[str | None] = [None] * grid.world_size
    dist.all_gather_object(failures, failure, group=grid.control)
    told = [text for text in failures if text is not None]
    if told:
        if grid.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)  # gives the space back; what is left goes with the next save
        raise RuntimeError(f"checkpoint {partial} was not published: " + "; ".join(dict.fromkeys(told)))


def _manifest(
    partial: Path,
    engine: Engine,
    grid: Grid,
    state: TrainState,
    layers_per_stage: tuple[int, ...],
    fingerprints: Mapping[str, str],
    settings: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> Manifest:
    parallel = grid.parallel
    return Manifest(
        **state.as_dict(),
        optimizer_updates=engine.updates,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        grid={
            "tensor": parallel.tensor,
            "pipeline": parallel.pipeline,
            "virtual": parallel.virtual,
            "data": grid.data,
            "sequence": int(parallel.sequence),
        },
        layers_per_stage=list(layers_per_stage),
        versions={
            "attnres_train": __version__,
            "torch": torch.__version__,
            "megatron-core": version("megatron-core"),
        },
        tensors={name: {"shape": list(shape), "dtype": "float32"} for name, shape in sorted(shapes.items())},
        files={str(p.relative_to(partial)): p.stat().st_size for p in sorted(partial.rglob("*")) if p.is_file()},
        fingerprints=dict(fingerprints),
        settings=dict(settings),
    )
