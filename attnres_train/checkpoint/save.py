"""Saving as a transaction: write aside, all ranks vote, one rename publishes."""

from __future__ import annotations

import datetime
import logging
import os
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed as dist

from attnres_train.checkpoint.folder import (
    checkpoint_name,
    checkpoints_folder,
    keep_newest,
    partial_folder,
    remove_leftovers,
)
from attnres_train.checkpoint.manifest import Manifest, write_manifest
from attnres_train.checkpoint.random_state import save_random_state
from attnres_train.checkpoint.sharded import save_states, whole_shapes
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
    keep: int | None,
) -> Path:
    """Write and publish the checkpoint of `state`; a collective. Returns its folder.

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
        manifest = _manifest(partial, engine, grid, state, layers_per_stage, fingerprints, shapes)
        write_manifest(partial, manifest)
        if published.exists():
            # The same step again: a resumed run has trained it anew, or a save was asked for twice.
            shutil.rmtree(published)
        partial.rename(published)
        _flush_folder(checkpoints)
        keep_newest(checkpoints, keep)
    dist.barrier(group=grid.control)
    return published


def _write(partial: Path, engine: Engine, grid: Grid) -> str | None:
    """Write this rank's part; returns the failure in words, so that all ranks can be told of it."""
    try:
        save_states(partial, engine.parameters(), engine.export_state(), grid)
        save_random_state(partial, grid)
    except OSError as error:
        log.exception("writing to %s failed", partial)
        return f"{grid}: {error}"
    return None


def _vote(grid: Grid, failure: str | None, partial: Path) -> None:
    failures: list[str | None] = [None] * grid.world_size
    dist.all_gather_object(failures, failure, group=grid.control)
    told = [text for text in failures if text is not None]
    if told:
        raise RuntimeError(f"checkpoint {partial} was not published: " + "; ".join(told))


def _manifest(
    partial: Path,
    engine: Engine,
    grid: Grid,
    state: TrainState,
    layers_per_stage: tuple[int, ...],
    fingerprints: Mapping[str, str],
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
        versions={"torch": torch.__version__, **{n: version(n) for n in ("attnres-train", "megatron-core")}},
        tensors={name: {"shape": list(shape), "dtype": "float32"} for name, shape in sorted(shapes.items())},
        files={str(p.relative_to(partial)): p.stat().st_size for p in sorted(partial.rglob("*")) if p.is_file()},
        fingerprints=dict(fingerprints),
    )


def _flush_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
