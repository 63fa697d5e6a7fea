"""State of which every data-parallel rank holds ranges: what both engines show, save and restore."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from attnres_train.engine.interface import StatePart
from attnres_train.engine.kinds import BUFFER, MOMENTS, Kind, kinds_of
from attnres_train.model.parameters import LogicalParameter, logical_parameters
from attnres_train.model.stage import StageModel
from attnres_train.parallel.grid import Grid

Ranges = Sequence[Mapping[str, tuple[int, int]]]
"""By data-parallel rank and name: of the flat parameter."""


class Shard(NamedTuple):
    """What a data-parallel rank updates of one parameter."""

    owned: slice
    """Of the flat parameter."""
    tensors: dict[Kind, Tensor]
    """That range of the fp32 master and of the moments: flat views."""


class ShardedState(ABC):
    """Shows the state of the stages' parameters: of each a range on every data-parallel rank, or nothing."""

    def __init__(self, stages: Sequence[StageModel], grid: Grid):
        self.grid = grid
        self.updates = 0
        everything = [p for stage in stages for p in logical_parameters(stage)]
        self._logical = [p for p in everything if not p.spec.buffer]
        self._buffers = [p for p in everything if p.spec.buffer]

    @abstractmethod
    def shard(self, logical: LogicalParameter) -> Shard | None:
        """What this rank updates of a parameter."""

    def parameters(self) -> Sequence[LogicalParameter]:
        return [*self._logical, *self._buffers]

    def held(self) -> Iterator[StatePart]:
        for logical in self._logical:
            if logical.owned and (shard := self.shard(logical)) is not None:
                for kind in kinds_of(logical.spec):
                    yield StatePart(kind, logical, shard.owned, shard.tensors[kind].detach())
        for logical in self._buffers:
            yield StatePart(BUFFER, logical, slice(0, logical.numel), logical.parameter.view(-1))

    def share(self) -> Iterator[StatePart]:
        sends, leaving, ranges = [], [], self._ranges
        owned = [logical for logical in self.parameters() if logical.owned]
        for index, logical in enumerate(owned):
            keeper, whole = index % self.grid.data, slice(0, logical.numel)
            shard = None if logical.spec.buffer else self.shard(logical)
            if keeper == self.grid.data_rank:
                for kind in kinds_of(logical.spec):
                    yield StatePart(kind, logical, whole, self._collected(logical, shard, kind, ranges))
            elif shard is not None:
                parts = [part.detach().to(self.grid.device) for part in shard.tensors.values()]
                leaving += parts  # what was in host memory is a copy that must live until it has gone
                sends += [dist.isend(part, group=self.grid.groups.dp, group_dst=keeper) for part in parts]
        for send in sends:
            assert send is not None, "this rank is in its own data-parallel group"
            send.wait()

    def restored(self, updates: int) -> None:
        self.updates = updates
        for logical in self._logical:
            if logical.spec.copies > 1:
                self._give_to_the_copy(logical)

    @torch.no_grad()
    def _give_to_the_copy(self, logical: LogicalParameter) -> None:
        """The state of a tied table from the first stage to the last, which cuts it for its data ranks otherwise."""
        shard = self.shard(logical)
        whole = torch.empty(logical.numel, dtype=torch.float32, device=self.grid.device)
        for kind in kinds_of(logical.spec):
            if logical.owned:
                whole.zero_()
                if shard is not None:
                    whole[shard.owned] = shard.tensors[kind]
                dist.all_reduce(whole.view(torch.int32), group=self.grid.groups.dp)  # of each element one rank has bits
            dist.broadcast(whole, group=self.grid.groups.embd, group_src=0)
            if not logical.owned and shard is not None:
                shard.tensors[kind].copy_(whole[shard.owned])

    @cached_property
    def _ranges(self) -> Ranges:
        """What each data-parallel rank holds. A collective when it is first asked for."""
        mine = {p.name: (s.owned.start, s.owned.stop) for p in self._logical if (s := self.shard(p)) is not None}
        order = hashlib.sha256("\n".join(f"{p.name} {p.shape}" for p in self.parameters()).encode()).hexdigest()
        everybody = [(order, mine)] * self.grid.data
        dist.all_gather_object(everybody, (order, mine), group=self.grid.groups.dp)
        # By their place in this order parameters are dealt out, and sends and receives meet.
        assert all(theirs == order for theirs, _ in everybody), "data-parallel ranks list parameters in another order"
        return [ranges for _, ranges in everybody]

    def _collected(self, logical: LogicalParameter, shard: Shard | None, kind: Kind, ranges: Ranges) -> Tensor:
        """The whole fp32 tensor in new host memory, from the ranges of all data-parallel ranks."""
        if logical.spec.buffer:
            return logical.parameter.detach().to("cpu", copy=True)
        whole = torch.empty(logical.numel, dtype=torch.float32, device=self.grid.device)
        for rank, of_rank in enumerate(ranges):
            owned = of_rank.get(logical.name)
            if owned is None:
                continue
            part = whole[slice(*owned)]
            if rank == self.grid.data_rank:
                assert shard is not None
                part.copy_(shard.tensors[kind])
            else:
                dist.recv(part, group=self.grid.groups.dp, group_src=rank)
        return whole.view(logical.shape).cpu()


def moments(slot: MutableMapping[str, Any], master: Tensor) -> dict[Kind, Tensor]:
    """Those of `master` in what torch's AdamW keeps of it: made as it would make them, if there was no step yet."""
    for kind in MOMENTS:
        if kind.slot not in slot:
            slot[kind.slot] = torch.zeros_like(master, requires_grad=False)
    slot.setdefault("step", torch.tensor(0.0))
    return {kind: slot[kind.slot] for kind in MOMENTS}
