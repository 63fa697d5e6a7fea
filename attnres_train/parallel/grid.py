"""The one object that owns the degrees, the groups and this rank's place in them."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from attnres_train.depth.describe import default_device_type
from attnres_train.parallel.config import ParallelConfig
from attnres_train.parallel.cpu import adapt_megatron_to_cpu
from attnres_train.parallel.lanes import Lanes, connect, make_lanes


@dataclass(frozen=True)
class Grid:
    """Degrees and groups; `groups` is megatron-core's collection.

    `control` is a gloo group of all ranks for decisions that must agree (stop, skip, publish), and for all else that
    lies in host memory: between GPUs it is the only one that can carry that. `lanes` are groups over the pipeline ranks
    for messages between neighbours.
    """

    parallel: ParallelConfig
    world_size: int
    rank: int
    device: torch.device
    groups: ProcessGroupCollection
    lanes: Lanes
    control: dist.ProcessGroup

    @property
    def tensor_rank(self) -> int:
        return self.groups.tp.rank()

    @property
    def pipeline_rank(self) -> int:
        return self.groups.pp.rank()

    @property
    def data_rank(self) -> int:
        return self.groups.dp.rank()

    @property
    def data(self) -> int:
        """Data-parallel replicas."""
        return self.groups.dp.size()

    @property
    def keeps_run(self) -> bool:
        """Rank 0: keeps the run folder's common files, logs and curves, chooses and publishes checkpoints, for all."""
        return self.rank == 0

    @property
    def owns_loss(self) -> bool:
        """One rank a replica that holds the loss: on the last stage, the first tensor rank."""
        return self.pipeline_rank == self.parallel.pipeline - 1 and self.tensor_rank == 0

    @property
    def speaks_for_replica(self) -> bool:
        """One rank a replica that tells which samples it read: on the first stage, the first tensor rank."""
        return self.pipeline_rank == 0 and self.tensor_rank == 0

    @property
    def counts_whole(self) -> bool:
        """One rank of those that hold a copy each of what is not cut: the first tensor rank."""
        return self.tensor_rank == 0

    def lane_groups(self, step: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """The groups this rank sends and receives with where messages move by `step` ranks, 1 or -1."""
        return self.lanes.of(self.pipeline_rank, self.parallel.pipeline, step)

    def stages(self) -> list[int]:
        """The global stages of this rank, in the order of its chunks."""
        return [c * self.parallel.pipeline + self.pipeline_rank for c in range(self.parallel.virtual)]

    def __str__(self) -> str:
        return f"rank {self.rank} (tensor {self.tensor_rank}, pipeline {self.pipeline_rank}, data {self.data_rank})"


def start_process_group(timeout_seconds: int) -> None:
    """Join the ranks that `torchrun` started; alone, make a world of one."""
    backend = "gloo"
    if default_device_type() == "cuda":
        # Of GPUs alone: with gloo beside it every group would be a mesh of connections too. Without `device_id`, which
        # would form a communicator for every group there is, also for those that nothing is ever sent in.
        backend = "nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    timeout = datetime.timedelta(seconds=timeout_seconds)
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=timeout)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)


def build_grid(parallel: ParallelConfig, seed: int) -> Grid:
    """Make the groups of `parallel` over the ranks of the default process group.

    Data parallelism takes what the other degrees leave of the world.
    """
    adapt_megatron_to_cpu()
    timeout = datetime.timedelta(seconds=parallel.timeout_seconds)
    with _one_group_for_the_same_ranks():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=parallel.tensor,
            pipeline_model_parallel_size=parallel.pipeline,
            virtual_pipeline_model_parallel_size=parallel.virtual if parallel.virtual > 1 else None,
            context_parallel_size=parallel.context,
            create_gloo_process_groups=False,
            distributed_timeout_minutes=max(1, parallel.timeout_seconds // 60),
        )
    groups = ProcessGroupCollection.use_mpu_process_groups()
    on_gpu = default_device_type() == "cuda"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    # Streams differ between replicas and stages; megatron-core adds the tensor rank where that must differ too.
    model_parallel_cuda_manual_seed(seed + 1_000 * groups.pp.rank() + 100_000 * groups.dp.rank())
    ring = parallel.virtual > 1
    control = dist.new_group(backend="gloo", timeout=timeout)
    lanes = make_lanes(groups.pp, ring, timeout, control)
    connect(lanes, groups.pp, ring, device)
    _form(groups, device)
    return Grid(
        parallel=parallel,
        world_size=dist.get_world_size(),
        rank=dist.get_rank(),
        device=device,
        groups=groups,
        lanes=lanes,
        control=control,
    )


def _form(groups: ProcessGroupCollection, device: torch.device) -> None:
    """The communicators of all groups that every model uses, in one order and while the device is empty.

    Each would form at its first use, some of them at the end of a step: a rank that has no memory left for it then lets
    the others wait without a limit.
    """
    for group in dict.fromkeys((dist.group.WORLD, groups.tp, groups.dp, groups.pp)):
        if group.size() > 1:
            dist.all_reduce(torch.zeros(1, device=device), group=group)


@contextmanager
def _one_group_for_the_same_ranks() -> Iterator[None]:
    """Meanwhile megatron-core's groups of the same ranks are one group.

    It makes some twenty. Between CPUs each costs three threads and a connection to every member, between GPUs, once
    it is used, a communicator; and most have the members of another, or a single one.
    """
    create, made = parallel_state.create_group, {tuple(range(dist.get_world_size())): dist.group.WORLD}

    def create_or_share(ranks: list[int], **kwargs: Any) -> Any:
        members = tuple(sorted(ranks))
        if members not in made:  # the same on every rank, as the calls are
            made[members] = create(ranks, **kwargs)
        return made[members]

    parallel_state.create_group = create_or_share
    try:
        yield
    finally:
        parallel_state.create_group = create


def stop_process_group() -> None:
    """Leave the grid; another may be built in the same process after `start_process_group`."""
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
