"""Our grid in the words that DeepSpeed asks for it: the "model parallel unit" of `deepspeed.initialize`."""

from __future__ import annotations

import torch.distributed as dist

from attnres_train.parallel.grid import Grid


class GridMpu:
    """What DeepSpeed 0.19.8 calls on an mpu.

    "Model parallel" is everything that is not data parallel: tensor and pipeline ranks together. DeepSpeed would take
    an object with `initialize_sequence_parallel` for Ulysses and one with `get_sequence_*` for ranks that share the
    sequence of a replica; our sequence shards are those of the tensor ranks, so there are no such methods.
    """

    def __init__(self, grid: Grid):
        self._grid = grid

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        return self._grid.groups.mp

    def get_model_parallel_rank(self) -> int:
        return self._grid.groups.mp.rank()

    def get_model_parallel_world_size(self) -> int:
        return self._grid.groups.mp.size()

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        return self._grid.groups.dp

    def get_data_parallel_group_ranks(self) -> list[int]:
        return dist.get_process_group_ranks(self._grid.groups.dp)

    def get_data_parallel_rank(self) -> int:
        return self._grid.data_rank

    def get_data_parallel_world_size(self) -> int:
        return self._grid.data

    def get_tensor_model_parallel_group(self) -> dist.ProcessGroup:
        return self._grid.groups.tp

    def get_tensor_model_parallel_rank(self) -> int:
        return self._grid.tensor_rank

    def get_tensor_model_parallel_world_size(self) -> int:
        return self._grid.parallel.tensor

    def get_pipeline_model_parallel_group(self) -> dist.ProcessGroup:
        return self._grid.groups.pp

    def get_pipeline_model_parallel_rank(self) -> int:
        return self._grid.pipeline_rank

    def get_pipeline_model_parallel_world_size(self) -> int:
        return self._grid.parallel.pipeline
