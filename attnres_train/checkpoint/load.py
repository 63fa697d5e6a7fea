"""Continuing from a verified checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from attnres_train.checkpoint.fit import Difference, differences, told
from attnres_train.checkpoint.manifest import Manifest, SavedGrid
from attnres_train.checkpoint.metadata import METADATA_FILE
from attnres_train.checkpoint.plain import NotPlain
from attnres_train.checkpoint.random_state import (
    random_state_file,
    random_streams,
    read_random_state,
    set_random_state,
)
from attnres_train.checkpoint.reader import ANOTHER, NOBODY_KNOWS, described
from attnres_train.checkpoint.sharded import (
    SMALL_FILES,
    CheckpointFailure,
    check_small_files,
    load_states,
    whole_tensors,
)
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
    parts = set(described(folder, manifest).state_dict_metadata)
    streams = _read_together(folder, manifest, grid)
    shapes = {name: record.shape for name, record in whole_tensors(engine.parameters(), grid).items()}
    found = differences(manifest, parts, shapes, fingerprints, settings)
    refused = [difference for difference in found if difference.allowed_as not in allow]
    if refused:
        raise Refused([Problem(f"{folder.name}: {p.key}", p.message, p.remedy) for p in told(refused)])
    _import(folder, manifest, engine, grid, found)
    if streams is not None:
        set_random_state(streams)
    fields = {name: getattr(manifest, name) for name in TrainState().as_dict()}
    return TrainState(**fields), found


def _read_together(folder: Path, manifest: Manifest, grid: Grid) -> dict[str, Tensor] | None:
    """The random streams of this rank, None where the grid is another; every small file is held against what we write.

    A collective: one rank's refusal is raised on all.
    """
    same_grid, streams = _same_grid(manifest, grid), None
    name = random_state_file(folder, grid.rank).name
    told: list[str] = []
    try:
        _refuse_unlisted(manifest, [METADATA_FILE, *SMALL_FILES, *([name] if same_grid else [])])
        if same_grid:
            streams = read_random_state(folder / name)
            _try_streams(streams, name)
        if grid.keeps_run:
            check_small_files(folder)
    except NotPlain as reason:
        told.append(str(reason))
    everybody: list[list[str]] = [[]] * grid.world_size
    dist.all_gather_object(everybody, told, group=grid.control)
    if problems := list(dict.fromkeys(text for part in everybody for text in part)):
        raise Refused([Problem(str(folder), text, NOBODY_KNOWS) for text in problems])
    return streams


def _refuse_unlisted(manifest: Manifest, names: Sequence[str]) -> None:
    if unlisted := [name for name in names if name not in manifest.files]:
        raise NotPlain(f"{', '.join(unlisted)}: not among the files of the manifest, whose checksums vouch for them")


def _try_streams(streams: dict[str, Tensor], name: str) -> None:
    before = random_streams()
    try:
        set_random_state(streams)
    except RuntimeError as error:
        raise NotPlain(f"{name} holds no random stream: {error}") from error
    finally:
        set_random_state(before)


def _import(folder: Path, manifest: Manifest, engine: Engine, grid: Grid, found: Sequence[Difference]) -> None:
    """Give the engine what the checkpoint has; the rest stays as it was made."""
    missing = {difference.tensor for difference in found if difference.allowed_as == "missing"}
    zero = {difference.tensor for difference in found if difference.allowed_as == "moments" and difference.tensor}
    stored = [p for p in engine.parameters() if p.name not in missing]
    try:
        states = load_states(folder, manifest.files, stored, grid, without=zero)
    except CheckpointFailure as failure:
        raise refuse(str(folder), f"cannot be read: {failure}", ANOTHER) from failure
    engine.import_state(states, manifest.optimizer_updates)


def _same_grid(manifest: Manifest, grid: Grid) -> bool:
    """Whether ranks stand where they stood; dividing sequences moves no random stream."""
    return manifest.grid._replace(sequence=0) == SavedGrid.of(grid)._replace(sequence=0)
