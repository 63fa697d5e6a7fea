"""Optimizer states as megatron-core `ShardedTensor`s under logical names, written in its dist_checkpointing's format.

One format for every grid: `weight/<name>`, `first_moment/<name>`, `second_moment/<name>`, each fp32 and in the
whole model's shape, or `buffer/<name>`. The fp32 weight is the master; a bf16 model's weights are its rounding.

Files are torch's `.distcp`, described by megatron-core's `torch_dist` metadata. The strategies that megatron-core
0.16.1 ships are not used: its writer forks and starts a manager by spawn (seconds a save, a hang without a `__main__`
guard), its reader unpickles, and neither leaves room for checksums or for training to go on meanwhile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
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
    MCoreSavePlanner,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from megatron.core.dist_checkpointing.validation import determine_global_metadata, validate_sharding_integrity
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from attnres_train.checkpoint.checksum import FileRecord, record_of, written
from attnres_train.checkpoint.manifest import TensorRecord
from attnres_train.checkpoint.metadata import METADATA_FILE
from attnres_train.checkpoint.plain import NotPlain, why_not_loaded
from attnres_train.durable import flush_file
from attnres_train.engine.interface import StatePart
from attnres_train.model.parameters import LogicalParameter
from attnres_train.parallel.grid import Grid


class PendingStates:
    """States on their way to disk: planned by all ranks together, then written by each alone, in any thread."""

    def __init__(self, folder: Path, states: Sequence[StatePart], grid: Grid):
        """Plan; a collective. `states` must not change until they are written."""
        self._grid, self._writer = grid, CheckedWriter(folder)
        self._planner = MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
        self._metadata: Metadata | None = None
        self._results: list[WriteResult] = []
        self._plan = self._agree(_torch_state_dict(states, grid))

    def _agree(self, state_dict: dict[str, Any]) -> SavePlan:
        """torch's protocol: every rank's plan, made one by rank 0, and each rank's part of it back."""
        first = self._grid.keeps_run
        self._planner.set_up_planner(state_dict, self._writer.storage_meta(), first)
        self._writer.set_up_storage_writer(first, rank=self._grid.rank, use_collectives=True)
        mine = self._writer.prepare_local_plan(self._planner.create_local_plan())
        plans: list[SavePlan] | None = [mine] * self._grid.world_size if first else None
        dist.gather_object(mine, plans, group=self._grid.control)
        if plans is not None:
            plans, self._metadata = self._planner.create_global_plan(plans)
            plans = self._writer.prepare_global_plan(plans)
        answer: list[SavePlan | None] = [None]
        dist.scatter_object_list(answer, plans, src=0, group=self._grid.control)
        assert answer[0] is not None
        return self._planner.finish_plan(answer[0])

    def write(self) -> dict[str, FileRecord]:
        """Write and flush this rank's file; returns what it is. Raises OSError."""
        with without_checksums_of_torchs_own():
            self._results = self._writer.write_data(self._plan, self._planner).wait()
        return dict(self._writer.records)

    @property
    def results(self) -> list[WriteResult]:
        """Where everything went, to be gathered on rank 0 for `finish`."""
        return self._results

    def finish(self, results: list[list[WriteResult]]) -> dict[str, FileRecord]:
        """On rank 0: write the metadata, and what makes megatron-core know the format. Raises OSError."""
        assert self._metadata is not None
        return finish(self._writer, self._metadata, results)


def finish(writer: CheckedWriter, metadata: Metadata, results: list[list[WriteResult]]) -> dict[str, FileRecord]:
    """Write the metadata of what lies where `results` say, and what makes megatron-core know the format. Raises
    OSError."""
    writer.finish(metadata, results)
    folder = Path(writer.path)
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
def without_checksums_of_torchs_own() -> Iterator[None]:
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


def whole_tensors(parameters: Sequence[LogicalParameter], grid: Grid) -> dict[str, TensorRecord]:
    """Every parameter of the whole model, by name, gathered from all ranks."""
    mine = {p.name: TensorRecord(tuple(p.sharding.shape), "float32", p.spec.decays) for p in parameters}
    everybody: list[dict[str, TensorRecord]] = [{}] * grid.world_size
    dist.all_gather_object(everybody, mine, group=grid.control)
    return dict(sorted((name, record) for part in everybody for name, record in part.items()))


def _pieces(part: StatePart, grid: Grid) -> list[ShardedTensor]:
    """This rank's pieces of one logical tensor. Copies on other tensor ranks are replicas; one of them is written."""
    sharding = part.logical.sharding
    replica = (0, grid.tensor_rank if sharding.axis is None else 0, 0)
    pieces = []
    for piece in sharding.pieces(grid.tensor_rank, grid.parallel.tensor):
        local, offset = part.tensor, [0] * len(sharding.shape)
        if sharding.axis is not None:
            local = local[(*(slice(None),) * sharding.axis, piece.local)]
            offset[sharding.axis] = piece.logical.start
        pieces.append(
            ShardedTensor(
                key=part.key,
                data=local.contiguous(),
                dtype=local.dtype,
                local_shape=tuple(local.shape),
                global_shape=sharding.shape,
                global_offset=tuple(offset),
                # Pieces differ in length where a padded vocabulary is cut, so there is no regular grid.
                axis_fragmentations=None,
                replica_id=replica,
            )
        )
    return pieces


def _torch_state_dict(states: Sequence[StatePart], grid: Grid) -> dict[str, Any]:
    """The pieces that this rank holds, as torch's planner wants them."""
    sharded = {f"{part.key}/{index}": piece for part in states for index, piece in enumerate(_pieces(part, grid))}
    validate_sharding_integrity(determine_global_metadata(sharded)[1])
    by_key, _flat, _renamed = _replace_state_dict_keys_with_sharded_keys(sharded, True)
    return mcore_to_pyt_state_dict(by_key, is_loading=False)
