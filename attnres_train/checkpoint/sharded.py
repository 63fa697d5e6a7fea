"""Optimizer states as megatron-core `ShardedTensor`s under logical names, written and read by its dist_checkpointing.

One format for every grid: `weight/<name>`, `first_moment/<name>`, `second_moment/<name>`, each fp32 and in the
whole model's shape. The fp32 weight is the master; a bf16 model's weights are its rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.strategies.base import SaveShardedStrategy
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from attnres_train.engine.interface import OptimizerState
from attnres_train.model.parameters import LogicalParameter
from attnres_train.parallel.grid import Grid

KINDS = {"weight": "master", "first_moment": "first_moment", "second_moment": "second_moment"}


def save_states(
    folder: Path, parameters: Sequence[LogicalParameter], states: Mapping[str, OptimizerState], grid: Grid
) -> None:
    """Write the states of all ranks to `folder`, which exists; a collective."""
    sharded = {
        f"{kind}/{p.name}/{index}": piece
        for p in parameters
        if p.owned
        for kind, attribute in KINDS.items()
        for index, piece in enumerate(_pieces(f"{kind}/{p.name}", p, getattr(states[p.name], attribute), grid))
    }
    with _failures_in_words():
        dist_checkpointing.save(sharded, str(folder), sharded_strategy=PlainTorchSave("torch_dist", 1))


def load_states(folder: Path, parameters: Sequence[LogicalParameter], grid: Grid) -> dict[str, OptimizerState]:
    """Read what this rank holds of every parameter in `parameters`; a collective."""
    whole = {
        f"{kind}/{p.name}": torch.zeros(p.parameter.shape, dtype=torch.float32) for p in parameters for kind in KINDS
    }
    sharded = {
        f"{kind}/{p.name}/{index}": piece
        for p in parameters
        for kind in KINDS
        for index, piece in enumerate(_pieces(f"{kind}/{p.name}", p, whole[f"{kind}/{p.name}"], grid))
    }
    with _failures_in_words():
        loaded = dist_checkpointing.load(sharded, str(folder), validate_access_integrity=False)
    for p in parameters:
        for kind in KINDS:
            key = f"{kind}/{p.name}"
            for index, piece in enumerate(p.sharding.pieces(grid.tensor_rank, grid.parallel.tensor)):
                _local(whole[key], p, piece.local).copy_(loaded[f"{key}/{index}"])
    return {
        p.name: OptimizerState(**{attribute: whole[f"{kind}/{p.name}"] for kind, attribute in KINDS.items()})
        for p in parameters
    }


class CheckpointFailure(Exception):
    """Files of a checkpoint could not be written or read; the message names rank and reason."""


@contextmanager
def _failures_in_words() -> Iterator[None]:
    """torch raises a `CheckpointException` on every rank, which is no `Exception` and holds each rank's traceback."""
    try:
        yield
    except CheckpointException as failure:
        told = [f"rank {rank}: {type(cause).__name__}: {cause}" for rank, (cause, _) in failure.failures.items()]
        raise CheckpointFailure("; ".join(told)) from failure


def whole_shapes(parameters: Sequence[LogicalParameter], grid: Grid) -> dict[str, tuple[int, ...]]:
    """Shapes of every parameter of the whole model, gathered from all ranks."""
    mine = {p.name: p.sharding.shape for p in parameters}
    everybody: list[dict[str, tuple[int, ...]]] = [{}] * grid.world_size
    dist.all_gather_object(everybody, mine, group=grid.control)
    return {name: shape for part in everybody for name, shape in part.items()}


def _local(tensor: Tensor, p: LogicalParameter, rows: slice) -> Tensor:
    """The part of a rank's tensor that one piece covers."""
    return tensor if p.sharding.axis is None else tensor[(*(slice(None),) * p.sharding.axis, rows)]


def _pieces(key: str, p: LogicalParameter, tensor: Tensor, grid: Grid) -> list[ShardedTensor]:
    """This rank's pieces of one logical tensor. Copies on other ranks are replicas; one of them is written."""
    held_by_all_tensor_ranks = p.sharding.axis is None
    replica = (0, grid.tensor_rank if held_by_all_tensor_ranks else 0, grid.data_rank)
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


class PlainTorchSave(SaveShardedStrategy):
    """megatron-core's `torch_dist` format, written in this process by torch's own file writer.

    The strategy it ships forks writers and starts a manager by spawn, which imports everything anew: seconds
    a run, and a hang where the entry script has no `__main__` guard.
    """

    def save(self, sharded_state_dict: dict[str, ShardedTensor], checkpoint_dir: Path) -> None:
        by_key, _flat, _renamed = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, True)
        dcp.save(
            mcore_to_pyt_state_dict(by_key, is_loading=False),
            storage_writer=dcp.FileSystemWriter(checkpoint_dir),
            planner=MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
        )

    @property
    def can_handle_sharded_objects(self) -> bool:
        return True
