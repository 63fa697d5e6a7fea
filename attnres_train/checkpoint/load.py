"""Continuing from a verified checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata

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
from attnres_train.checkpoint.read_sums import ReadSums
from attnres_train.checkpoint.reader import ANOTHER, NOBODY_KNOWS, CheckpointReader, described
from attnres_train.checkpoint.sharded import SMALL_FILES, check_small_files, whole_tensors
from attnres_train.checkpoint.whole import Damaged, whole_after_reading
from attnres_train.engine.interface import Engine, StatePart
from attnres_train.engine.kinds import AVERAGE, BUFFER, MASTER, MOMENTS, Kind
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
    weights_only: bool = False,
) -> tuple[TrainState, list[Difference]]:
    """Continue from `folder`, written under any grid: weights, moments, position, and random streams where the grid is
    the same; and the differences that `allow` accepted. With `weights_only` the weights and buffers of an engine that
    is new are taken, and the state is that of step 0. A collective.

    What is read is held against the checksums of the files as it is read; the small files have been before. Raises
    Refused, listing every difference, where it does not fit; Damaged, on all ranks, where a file is not as it was
    written: then the engine holds what was read of it, and must not be used.
    """
    reader = CheckpointReader(folder, manifest, described(folder, manifest))
    shapes = {name: record.shape for name, record in whole_tensors(engine.parameters(), grid).items()}
    averages = any(AVERAGE in engine.kinds(p.spec) for p in engine.parameters())
    stored = set(reader.metadata.state_dict_metadata)
    found = differences(manifest, stored, shapes, fingerprints, settings, weights_only, averages)
    refused = [difference for difference in found if difference.allowed_as not in allow]
    if refused:
        raise Refused([Problem(f"{folder.name}: {p.key}", p.message, p.remedy) for p in told(refused)])
    streams = _read_together(folder, manifest, grid, weights_only)
    sums = ReadSums(manifest.files)
    optimizer = () if weights_only else (*MOMENTS, *([AVERAGE] if averages else []))
    kinds = (MASTER, BUFFER, *optimizer)
    failures = _import(reader, engine, grid, kinds, found, sums)
    keys = _read_keys(reader.metadata, shapes, kinds, found)
    wrong = [failure.text for failure in failures if failure.damage]
    if wrong or (wrong := whole_after_reading(reader, grid, keys, sums, again=bool(failures))):
        raise Damaged(folder, wrong)
    if failures:
        raise refuse(str(folder), f"cannot be read: {'; '.join(failure.text for failure in failures)}", ANOTHER)
    engine.restored(0 if weights_only else manifest.optimizer_updates)
    if streams is not None:
        set_random_state(streams)
    if weights_only:
        return TrainState(), found
    fields = {name: getattr(manifest, name) for name in TrainState().as_dict()}
    return TrainState(**fields), found


def _read_together(folder: Path, manifest: Manifest, grid: Grid, weights_only: bool) -> dict[str, Tensor] | None:
    """The random streams of this rank, None where the grid is another or they are new; every small file is held against
    what we write.

    A collective: one rank's refusal is raised on all.
    """
    same_grid, streams = _same_grid(manifest, grid) and not weights_only, None
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


class Failure(NamedTuple):
    """Why a rank could not read its part."""

    text: str
    damage: bool
    """The system could not read it; else bytes were found that are no tensor, whether written so or damaged."""


def _import(
    reader: CheckpointReader,
    engine: Engine,
    grid: Grid,
    kinds: Collection[Kind],
    found: Sequence[Difference],
    sums: ReadSums,
) -> list[Failure]:
    """Give the engine what the checkpoint has of `kinds`, each rank reading its own part; the rest stays as it is, but
    for a mean of weights, which begins with the weights.

    What could not be read, on every rank alike.
    """
    missing, zero, begun = _left_out(found)
    told: Failure | None = None
    try:
        with closing(reader.files):
            for part in engine.held():
                if part.kind is MASTER:
                    master = part.tensor  # of every parameter the first
                if part.kind is AVERAGE and (AVERAGE not in kinds or part.key in begun):
                    part.tensor.copy_(master)
                elif part.kind not in kinds:
                    continue
                elif part.key in zero:
                    part.tensor.zero_()
                elif part.logical.name not in missing:
                    counted = sums if _counts(part, grid) else None
                    place = (part.owned, grid.tensor_rank, grid.parallel.tensor)
                    reader.fill(part.tensor, part.key, part.logical.sharding, *place, counted)
    except OSError as error:
        told = Failure(f"{error.filename or 'a file'} cannot be read: rank {grid.rank}: {error.strerror}", True)
    except Exception as error:  # damaged bytes can say anything, and every rank must be told
        what = str(error) if isinstance(error, NotPlain) else f"{type(error).__name__}: {error}"
        told = Failure(f"rank {grid.rank}: {what}", False)
    everybody: list[Failure | None] = [None] * grid.world_size
    dist.all_gather_object(everybody, told, group=grid.control)
    return [failure for failure in everybody if failure is not None]


def _left_out(found: Sequence[Difference]) -> list[set[str | None]]:
    """Parameters that stay as they were made, keys that become zero, and keys of means that begin with the weights."""
    words = ("missing", "moments", "average")
    return [{difference.tensor for difference in found if difference.allowed_as == word} for word in words]


def _counts(part: StatePart, grid: Grid) -> bool:
    """Whether this rank counts what it reads of a tensor, of the ranks that hold a copy each."""
    one_of_tensor_ranks = part.logical.sharding.axis is not None or grid.counts_whole
    one_of_data_ranks = not part.logical.spec.buffer or grid.data_rank == 0
    return part.logical.owned and one_of_tensor_ranks and one_of_data_ranks


def _read_keys(
    metadata: Metadata, names: Collection[str], kinds: Collection[Kind], found: Sequence[Difference]
) -> set[str]:
    """What all ranks together read whole."""
    missing, zero, begun = _left_out(found)
    wanted = {f"{kind.stored}/{name}" for kind in kinds for name in names if name not in missing}
    return (wanted & metadata.state_dict_metadata.keys()) - zero - begun


def _same_grid(manifest: Manifest, grid: Grid) -> bool:
    """Whether ranks stand where they stood; dividing sequences moves no random stream."""
    return manifest.grid._replace(sequence=0) == SavedGrid.of(grid)._replace(sequence=0)
