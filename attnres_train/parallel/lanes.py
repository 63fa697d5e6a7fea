"""Process groups for messages between pipeline ranks, and how they are connected before anything is computed.

Under NCCL the operations of one group run one after the other on each rank, so what a rank sends and what it receives
must never share a group. A hop between ranks e and e + 1 has a colour, each colour has a group in each direction, and
the two hops at a rank differ in colour: even, odd, and a third one where an odd number of ranks closes to a ring.

A group's communicator forms at its first operation, for which all of its ranks must come, and two of them connect at
their first message, for which the host waits. In the middle of a schedule that is a deadlock: with 1F1B on 4 ranks, 0
never uses the odd group, which 2 would wait for. `connect` does all of it in one fixed order.
"""

from __future__ import annotations

import datetime
from typing import NamedTuple

import torch
import torch.distributed as dist

from attnres_train.parallel.colours import colour, colours_of


class Lanes(NamedTuple):
    """Groups of the pipeline's messages by direction and colour."""

    forward: tuple[dist.ProcessGroup, ...]
    backward: tuple[dist.ProcessGroup, ...]

    def of(self, rank: int, pipeline: int, step: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """With which pipeline rank `rank` sends and receives messages that move by `step`, 1 or -1."""
        groups = self.forward if step == 1 else self.backward
        after, before = (groups[colour(edge % pipeline, pipeline, len(groups))] for edge in (rank, rank - 1))
        return (after, before) if step == 1 else (before, after)


def make_lanes(
    pipeline: dist.ProcessGroup, ring: bool, timeout: datetime.timedelta, control: dist.ProcessGroup
) -> Lanes:
    """More groups with the members of `pipeline`; every rank takes part in making every such group. `control` is of all
    ranks and carries objects."""
    if pipeline.size() == 1:
        return Lanes((pipeline, pipeline), (pipeline, pipeline))
    members: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(members, dist.get_process_group_ranks(pipeline), group=control)
    pipelines = sorted({tuple(ranks) for ranks in members})

    def twin(name: str) -> dist.ProcessGroup:
        made = [dist.new_group(list(ranks), timeout=timeout, group_desc=name) for ranks in pipelines]
        (mine,) = [group for group in made if group != dist.GroupMember.NON_GROUP_MEMBER]
        return mine

    def direction(name: str) -> tuple[dist.ProcessGroup, ...]:
        return tuple(twin(f"{name} {number}") for number in range(colours_of(pipeline.size(), ring)))

    return Lanes(direction("forward lane"), direction("backward lane"))


def connect(lanes: Lanes, pipeline: dist.ProcessGroup, ring: bool, device: torch.device) -> None:
    """Form every group, then let each pair of neighbours exchange a number, colour after colour."""
    ranks, rank = dist.get_process_group_ranks(pipeline), pipeline.rank()
    if len(ranks) == 1:
        return
    for groups, step in ((lanes.forward, 1), (lanes.backward, -1)):
        for number, group in enumerate(groups):
            dist.all_reduce(torch.zeros(1, device=device), group=group)
            operations = []
            for edge, peer, sends in ((rank, rank + 1, step == 1), (rank - 1, rank - 1, step == -1)):
                edge, peer = edge % len(ranks), ranks[peer % len(ranks)]
                if colour(edge, len(ranks), len(groups)) == number and (ring or edge < len(ranks) - 1):
                    way = dist.isend if sends else dist.irecv
                    operations.append(dist.P2POp(way, torch.zeros(1, device=device), peer, group))
            for work in dist.batch_isend_irecv(operations) if operations else []:
                work.wait()
