"""Whole tensors from the ranges of them that data-parallel ranks hold: what every engine exports."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from attnres_train.engine.interface import OptimizerState
from attnres_train.engine.kinds import KINDS, Kind
from attnres_train.model.parameters import LogicalParameter
from attnres_train.parallel.grid import Grid


class Shards(Protocol):
    """The optimizer state of one data-parallel rank: of each parameter one range of its flat form, or nothing."""

    def owned_range(self, logical: LogicalParameter) -> slice | None:
        """The range of the flat parameter whose state this rank holds."""

    def shard(self, logical: LogicalParameter) -> dict[Kind, Tensor]:
        """That range of the fp32 master and of both moments, flat, by kind.

        Asked for only where there is a range. Moments are zero before the first update.
        """

    def gradient(self, logical: LogicalParameter) -> Tensor:
        """That range of the reduced gradient, flat."""


class Gatherer:
    """Puts the ranges of all data-parallel ranks together. All methods are collectives over those ranks."""

    def __init__(self, shards: Shards, logical: Sequence[LogicalParameter], grid: Grid):
        self._shards, self._logical, self._grid = shards, logical, grid
        self._group = grid.groups.dp
        self._data_ranks = dist.get_process_group_ranks(self._group)
        self._ranges = self._ranges_of_all()

    def gradients(self) -> Mapping[str, Tensor]:
        gradients = {}
        for logical in self._logical:
            owned = self._shards.owned_range(logical)
            gradient = self._whole(logical, None if owned is None else self._shards.gradient(logical))
            if logical.owned:
                gradients[logical.name] = gradient
        return gradients

    def states(self) -> Mapping[str, OptimizerState]:
        """The states of the rank's owned parameters, on every data-parallel rank."""
        states = {}
        for logical in self._logical:
            shard = self._shard(logical)
            whole = [self._whole(logical, None if shard is None else shard[kind]) for kind in KINDS]
            if logical.owned:
                states[logical.name] = OptimizerState(*whole)
        return states

    def share(self) -> Mapping[str, OptimizerState]:
        """The same, each on one of the data-parallel ranks alone, in new host memory."""
        states, sends, leaving = {}, [], []
        owned = [logical for logical in self._logical if logical.owned]
        for index, logical in enumerate(owned):
            keeper, shard = index % self._grid.data, self._shard(logical)
            if keeper == self._grid.data_rank:
                states[logical.name] = OptimizerState(*(self._collected(logical, shard, kind) for kind in KINDS))
            elif shard is not None:
                parts = [shard[kind].to(self._grid.device) for kind in KINDS]
                leaving += parts  # what was in host memory is a copy that must live until it has gone
                sends += [dist.isend(part, self._data_ranks[keeper], self._group) for part in parts]
        for send in sends:
            assert send is not None, "this rank is in its own data-parallel group"
            send.wait()
        return states

    def _shard(self, logical: LogicalParameter) -> dict[Kind, Tensor] | None:
        return None if self._shards.owned_range(logical) is None else self._shards.shard(logical)

    def _ranges_of_all(self) -> list[dict[str, tuple[int, int]]]:
        """By data-parallel rank and name: the range of the flat parameter whose state that rank holds."""
        mine = {
            logical.name: (owned.start, owned.stop)
            for logical in self._logical
            if (owned := self._shards.owned_range(logical)) is not None
        }
        order = hashlib.sha256("\n".join(f"{p.name} {p.shape}" for p in self._logical).encode()).hexdigest()
        everybody = [(order, mine)] * self._grid.data
        dist.all_gather_object(everybody, (order, mine), group=self._group)
        # By their place in this order parameters are dealt out, and sends and receives meet.
        assert all(theirs == order for theirs, _ in everybody), "data-parallel ranks list parameters in another order"
        return [ranges for _, ranges in everybody]

    def _collected(self, logical: LogicalParameter, shard: dict[Kind, Tensor] | None, kind: Kind) -> Tensor:
        """The whole fp32 tensor on the host, from the ranges of all data-parallel ranks."""
        whole = torch.empty(logical.numel, dtype=torch.float32, device=self._grid.device)
        for rank, ranges in enumerate(self._ranges):
            owned = ranges.get(logical.name)
            if owned is None:
                continue
            part = whole[slice(*owned)]
            if rank == self._grid.data_rank:
                assert shard is not None
                part.copy_(shard[kind])
            else:
                dist.recv(part, self._data_ranks[rank], self._group)
        return whole.view(logical.shape).cpu()

    def _whole(self, logical: LogicalParameter, part: Tensor | None) -> Tensor:
        """The whole fp32 tensor on every rank, from each rank's own range of it."""
        whole = torch.zeros(logical.numel, dtype=torch.float32, device=self._grid.device)
        owned = self._shards.owned_range(logical)
        if owned is not None and part is not None:
            whole[owned] = part.detach().to(whole)
        if self._grid.data > 1:
            dist.all_reduce(whole, group=self._group)
        return whole.view(logical.shape)
