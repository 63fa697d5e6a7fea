"""Optimizer states as megatron-core `ShardedTensor`s under logical names, written and read by its dist_checkpointing.

One format for every grid: `weight/<name>`, `first_moment/<name>`, `second_moment/<name>`, each fp32 and in the
whole model's shape. The fp32 weight is the master; a bf16 model's weights are its rounding.

Files are torch's `.distcp`, described by megatron-core's `torch_dist` metadata. The strategies that megatron-core
0.16.1 ships are not used: its writer forks and starts a manager by spawn (seconds a save, a hang without a `__main__`
guard), its reader unpickles, and neither leaves room for checksums or for training to go on meanwhile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.core import CONFIG_FNAME, CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.strategies.common import COMMON_STATE_FNAME
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreLoadPlanner,
    MCoreSavePlanner,
    _replace_sharded_keys_with_state_dict_keys,
    _replace_state_dict_keys_with_sharded_keys,
    _unwrap_pyt_sharded_tensor,
    mcore_to_pyt_state_dict,
)
from megatron.core.dist_checkpointing.validation import determine_global_metadata, validate_sharding_integrity
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from attnres_train.checkpoint.checksum import FileRecord, record_of, written
from attnres_train.checkpoint.manifest import TensorRecord
from attnres_train.checkpoint.metadata import METADATA_FILE, SafeReader
from attnres_train.checkpoint.plain import NotPlain, why_not_loaded
from attnres_train.durable import flush_file
from attnres_train.engine.interface import OptimizerState
from attnres_train.engine.kinds import KINDS
from attnres_train.model.parameters import LogicalParameter
from attnres_train.parallel.grid import Grid


class PendingStates:
    """States on their way to disk: planned by all ranks together, then written by each alone, in any thread."""

    def __init__(
        self, folder: Path, parameters: Sequence[LogicalParameter], states: Mapping[str, OptimizerState], grid: Grid
    ):
        """Plan; a collective. `states` must not change until they are written."""
        self._grid, self._writer = grid, CheckedWriter(folder)
        self._planner = MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
        self._metadata: Metadata | None = None
        self._results: list[WriteResult] = []
        self._plan = self._agree(_torch_state_dict(parameters, states, grid))

    def _agree(self, state_dict: dict[str, Any]) -> SavePlan:
        """torch's protocol: every rank's plan, made one by rank 0, and each rank's part of it back."""
        group, first = self._grid.control, self._grid.keeps_run
        self._planner.set_up_planner(state_dict, self._writer.storage_meta(), first)
        self._writer.set_up_storage_writer(first, rank=self._grid.rank, use_collectives=True)
        mine = self._writer.prepare_local_plan(self._planner.create_local_plan())
        plans: list[SavePlan] | None = [mine] * self._grid.world_size if first else None
        dist.gather_object(mine, plans, group=group)
        if plans is not None:
            plans, self._metadata = self._planner.create_global_plan(plans)
            plans = self._writer.prepare_global_plan(plans)
        answer: list[SavePlan | None] = [None]
        dist.scatter_object_list(answer, plans, src=0, group=group)
        assert answer[0] is not None
        return self._planner.finish_plan(answer[0])

    def write(self) -> dict[str, FileRecord]:
        """Write and flush this rank's file; returns what it is. Raises OSError."""
        with _without_checksums_of_torchs_own():
            self._results = self._writer.write_data(self._plan, self._planner).wait()
        return dict(self._writer.records)

    @property
    def results(self) -> list[WriteResult]:
        """Where everything went, to be gathered on rank 0 for `finish`."""
        return self._results

    def finish(self, results: list[list[WriteResult]]) -> dict[str, FileRecord]:
        """On rank 0: write the metadata, and what makes megatron-core know the format. Raises OSError."""
        assert self._metadata is not None
        self._writer.finish(self._metadata, results)
        folder = Path(self._writer.path)
        save_config(_FORMAT, str(folder))
        torch.save({}, folder / COMMON_STATE_FNAME)
        for name in SMALL_FILES:
            flush_file(folder / name)
        return {name: record_of(folder / name) for name in (METADATA_FILE, *SMALL_FILES)}


SMALL_FILES = (CONFIG_FNAME, COMMON_STATE_FNAME)
"""What makes megatron-core know the format; it would load the second without torch's safe mode."""
_FORMAT = CheckpointingConfig("torch_dist", 1)


def check_small_files(folder: Path) -> None:
    """Raises NotPlain where one of SMALL_FILES is not what `PendingStates.finish` writes."""
    config, common = (folder / name for name in SMALL_FILES)
    try:
        found = json.loads(config.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise NotPlain(f"{config.name} cannot be read: {error}") from error
    if found != asdict(_FORMAT):
        raise NotPlain(f"{config.name} is of another format: {found!r:.200}")
    try:
        content = torch.load(common, weights_only=True)
    except Exception as error:  # damaged bytes can say anything
        raise NotPlain(f"{common.name} {why_not_loaded(error)}") from error
    if not isinstance(content, dict) or content:
        raise NotPlain(f"{common.name} holds a {type(content).__name__} that no checkpoint of this version has")


@contextmanager
def _without_checksums_of_torchs_own() -> Iterator[None]:
    """torch.save would checksum every record once more, which takes half as long as writing it."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


class CheckedWriter(dcp.FileSystemWriter):
    """torch's writer of `.distcp` files; `records` has size and checksum of what it wrote."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.records: dict[str, FileRecord] = {}
        self.fs.create_stream = self._create_stream  # type: ignore[method-assign, assignment]

    @contextmanager
    def _create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        if mode != "wb":
            with open(path, mode) as file:
                yield file
            return
        with written(Path(path)) as stream:
            yield stream
        self.records[Path(path).name] = stream.record


def load_states(
    folder: Path,
    files: Collection[str],
    parameters: Sequence[LogicalParameter],
    grid: Grid,
    *,
    without: Collection[str] = (),
) -> dict[str, OptimizerState]:
    """Read what this rank holds of every parameter in `parameters`, from `files` in `folder`; a collective.

    `without` has keys such as `first_moment/NAME` that are zero instead. Loading runs no code.
    """
    whole = {f"{kind.stored}/{p.name}": torch.zeros(p.shape, dtype=torch.float32) for p in parameters for kind in KINDS}
    sharded = {
        f"{kind.stored}/{p.name}/{index}": piece
        for p in parameters
        for kind in KINDS
        if f"{kind.stored}/{p.name}" not in without
        for index, piece in enumerate(_pieces(f"{kind.stored}/{p.name}", p, whole[f"{kind.stored}/{p.name}"], grid))
    }
    loaded = _read(folder, files, sharded)
    for p in parameters:
        for kind in KINDS:
            key = f"{kind.stored}/{p.name}"
            for index, piece in enumerate(p.sharding.pieces(grid.tensor_rank, grid.parallel.tensor)):
                if key not in without:
                    _local(whole[key], p, piece.local).copy_(loaded[f"{key}/{index}"])
    return {p.name: OptimizerState(*(whole[f"{kind.stored}/{p.name}"] for kind in KINDS)) for p in parameters}


def _read(folder: Path, files: Collection[str], sharded: dict[str, ShardedTensor]) -> dict[str, Tensor]:
    """The pieces, filled from `folder`: what megatron-core's own strategy does, through a reader that runs no code."""
    by_key, flat, renamed = _replace_state_dict_keys_with_sharded_keys(sharded)
    state_dict = mcore_to_pyt_state_dict(by_key, True)
    with _failures_in_words():
        dcp.load(
            state_dict,
            storage_reader=SafeReader(folder, files),
            planner=MCoreLoadPlanner(shapes_validation_sharded_tensors=list(sharded.values())),
        )
    found = {key: _unwrap_pyt_sharded_tensor(value) for key, value in state_dict.items()}
    return _replace_sharded_keys_with_state_dict_keys(found, flat, renamed)


class CheckpointFailure(Exception):
    """Files of a checkpoint could not be written or read; the message names rank and reason."""


@contextmanager
def _failures_in_words() -> Iterator[None]:
    """torch raises a `CheckpointException` on every rank, which is no `Exception` and holds each rank's traceback."""
    try:
        yield
    except CheckpointException as failure:
        told = [f"rank {rank}: {_told(cause)}" for rank, (cause, _) in failure.failures.items()]
        raise CheckpointFailure("; ".join(told)) from failure


def _told(cause: BaseException) -> str:
    return str(cause) if isinstance(cause, NotPlain) else f"{type(cause).__name__}: {cause}"


def whole_tensors(parameters: Sequence[LogicalParameter], grid: Grid) -> dict[str, TensorRecord]:
    """Every parameter of the whole model, by name, gathered from all ranks."""
    mine = {p.name: TensorRecord(tuple(p.sharding.shape), "float32", p.spec.decays) for p in parameters}
    everybody: list[dict[str, TensorRecord]] = [{}] * grid.world_size
    dist.all_gather_object(everybody, mine, group=grid.control)
    return dict(sorted((name, record) for part in everybody for name, record in part.items()))


def _local(tensor: Tensor, p: LogicalParameter, rows: slice) -> Tensor:
    """The part of a rank's tensor that one piece covers."""
    return tensor if p.sharding.axis is None else tensor[(*(slice(None),) * p.sharding.axis, rows)]


def _pieces(key: str, p: LogicalParameter, tensor: Tensor, grid: Grid) -> list[ShardedTensor]:
    """This rank's pieces of one logical tensor. Copies on other tensor ranks are replicas; one of them is written."""
    held_by_all_tensor_ranks = p.sharding.axis is None
    replica = (0, grid.tensor_rank if held_by_all_tensor_ranks else 0, 0)
    pieces = []
    for piece in p.sharding.pieces(grid.tensor_rank, grid.parallel.tensor):
        local = _local(tensor, p, piece.local).contiguous().cpu()
        offset = [0] * len(p.sharding.shape)
        if p.sharding.axis is not None:
            offset[p.sharding.axis] = piece.logical.start
        pieces.append(
            ShardedTensor(
                key=key,
                data=local,
                dtype=local.dtype,
                local_shape=tuple(local.shape),
                global_shape=p.sharding.shape,
                global_offset=tuple(offset),
                # Pieces differ in length where a padded vocabulary is cut, so there is no regular grid.
                axis_fragmentations=None,
                replica_id=replica,
            )
        )
    return pieces


def _torch_state_dict(
    parameters: Sequence[LogicalParameter], states: Mapping[str, OptimizerState], grid: Grid
) -> dict[str, Any]:
    """The pieces that this rank holds, as torch's planner wants them."""
    sharded = {
        f"{kind.stored}/{p.name}/{index}": piece
        for p in parameters
        if p.name in states
        for kind in KINDS
        for index, piece in enumerate(_pieces(f"{kind.stored}/{p.name}", p, kind.of(states[p.name]), grid))
    }
    validate_sharding_integrity(determine_global_metadata(sharded)[1])
    by_key, _flat, _renamed = _replace_state_dict_keys_with_sharded_keys(sharded, True)
    return mcore_to_pyt_state_dict(by_key, is_loading=False)
