"""Continuing from a verified checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from attnres_train.checkpoint.fit import Difference, differences, told
from attnres_train.checkpoint.manifest import Manifest
from attnres_train.checkpoint.metadata import read_metadata
from attnres_train.checkpoint.random_state import load_random_state
from attnres_train.checkpoint.sharded import CheckpointFailure, load_states, whole_tensors
from attnres_train.engine.interface import Engine
from attnres_train.errors import Problem, Refused, refuse
from attnres_train.parallel.grid import Grid
from attnres_train.progress import TrainState


def load_checkpoint(
    folder: Path,
    manifest: Manifest,
    engine: Engine,
    grid: Grid,
    fingerprints: Mapping[str, str],
    settings: Mapping[str, Any],
    allow: Collection[str] = (),
) -> tuple[TrainState, list[Difference]]:
    """Continue from `folder`, written under any grid: weights, moments, position, and random streams where the grid is
    the same; and the differences that `allow` accepted. A collective.

    Raises Refused, listing every difference, where it does not fit.
    """
    parts = _stored_parts(folder)
    shapes = {name: record.shape for name, record in whole_tensors(engine.parameters(), grid).items()}
    found = differences(manifest, parts, shapes, fingerprints, settings)
    refused = [difference for difference in found if difference.allowed_as not in allow]
    if refused:
        raise Refused([Problem(f"{folder.name}: {p.key}", p.message, p.remedy) for p in told(refused)])
    _import(folder, manifest, engine, grid, found)
    if _same_grid(manifest, grid):
        load_random_state(folder, grid)
    fields = {name: getattr(manifest, name) for name in TrainState().as_dict()}
    return TrainState(**fields), found


def _stored_parts(folder: Path) -> set[str]:
    try:
        return set(read_metadata(folder).state_dict_metadata)
    except UnpicklingError as error:
        raise refuse(
            str(folder), f"its metadata hold {error}", "do not use it: nobody knows what it would do"
        ) from error
    except Exception as error:  # damaged bytes can say anything
        raise refuse(
            str(folder), f"its metadata cannot be read: {error}", "use another checkpoint of the run"
        ) from error


def _import(folder: Path, manifest: Manifest, engine: Engine, grid: Grid, found: Sequence[Difference]) -> None:
    """Give the engine what the checkpoint has; the rest stays as it was made."""
    missing = {difference.tensor for difference in found if difference.allowed_as == "missing"}
    zero = {difference.tensor for difference in found if difference.allowed_as == "moments" and difference.tensor}
    stored = [p for p in engine.parameters() if p.name not in missing]
    try:
        states = load_states(folder, stored, grid, without=zero)
    except CheckpointFailure as failure:
        raise refuse(str(folder), f"cannot be read: {failure}", "use another checkpoint of the run") from failure
    engine.import_state(states, manifest.optimizer_updates)


def _same_grid(manifest: Manifest, grid: Grid) -> bool:
    return manifest.grid[:4] == (grid.parallel.tensor, grid.parallel.pipeline, grid.parallel.virtual, grid.data)
