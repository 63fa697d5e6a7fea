"""State of which every data-parallel rank holds ranges: what both engines show, save and restore."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from attnres_train.engine.average import Averages
from attnres_train.engine.interface import StatePart
from attnres_train.engine.kinds import BUFFER, MOMENTS, Kind, kinds_of
from attnres_train.model.parameters import LogicalParameter, logical_parameters
from attnres_train.model.stage import StageModel
from attnres_train.model.tensors import TensorSpec
from attnres_train.parallel.grid import Grid

_PIECE_ELEMENTS = 16 << 20
"""Of a tensor that is collected, at a time: 64 MiB on the device."""


class Shard(NamedTuple):
    """What a data-parallel rank updates of one parameter."""

    owned: slice
    """Of the flat parameter."""
    tensors: dict[Kind, Tensor]
    """That range of the fp32 master, of the moments and of the mean, if one is kept: flat views."""


class ShardedState(ABC):
    """Shows the state of the stages' parameters: of each a range on every data-parallel rank, or nothing."""

    def __init__(self, stages: Sequence[StageModel], grid: Grid):
        self.grid = grid
        self.updates = 0
        self.averages: Averages | None = None
        """Of `masters`, where the engine was asked to keep them."""
        self._agreed = False
        everything = [p for stage in stages for p in logical_parameters(stage)]
        self._logical = [p for p in everything if not p.spec.buffer]
        self._buffers = [p for p in everything if p.spec.buffer]

    @abstractmethod
    def shard(self, logical: LogicalParameter) -> Shard | None:
        """What this rank updates of a parameter."""

    @abstractmethod
    def masters(self) -> Sequence[Tensor]:
        """The fp32 tensors that the optimizer updates on this rank, always in one order."""

    def keep_averages(self, decay: float | None) -> None:
        """Keep the exponential mean of `masters`, beginning with what they are now; None keeps none."""
        self.averages = None if decay is None else Averages(self.masters(), decay)

    def count_update(self) -> None:
        """An update was applied."""
        self.updates += 1
        if self.averages is not None:
            self.averages.update(self.masters(), self.updates)

    def kinds(self, spec: TensorSpec) -> tuple[Kind, ...]:
        return kinds_of(spec, averages=self.averages is not None)

    def parameters(self) -> Sequence[LogicalParameter]:
        return [*self._logical, *self._buffers]

    def held(self) -> Iterator[StatePart]:
        for logical in self._logical:
            if logical.owned and (shard := self.shard(logical)) is not None:
                for kind in self.kinds(logical.spec):
                    yield StatePart(kind, logical, shard.owned, shard.tensors[kind].detach())
        for logical in self._buffers:
            yield StatePart(BUFFER, logical, slice(0, logical.numel), logical.parameter.view(-1))

    def share(self) -> Iterator[StatePart]:
        self._agree_on_order()
        for index, logical in enumerate(p for p in self.parameters() if p.owned):
            keeper, whole = index % self.grid.data, slice(0, logical.numel)
            shard = None if logical.spec.buffer else self.shard(logical)
            for kind in self.kinds(logical.spec):
                collected = self._collected(logical, shard, kind, keeper)
                if collected is not None:
                    yield StatePart(kind, logical, whole, collected)

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
        for kind in self.kinds(logical.spec):
            if logical.owned:
                whole.zero_()
                if shard is not None:
                    whole[shard.owned] = shard.tensors[kind]
                dist.all_reduce(whole.view(torch.int32), group=self.grid.groups.dp)  # of each element one rank has bits
            dist.broadcast(whole, group=self.grid.groups.embd, group_src=0)
            if not logical.owned and shard is not None:
                shard.tensors[kind].copy_(whole[shard.owned])

    def _agree_on_order(self) -> None:
        """Data-parallel ranks list parameters in one order, by which they are dealt out. A collective, once."""
        if self._agreed:
            return
        mine = hashlib.sha256("\n".join(f"{p.name} {p.shape}" for p in self.parameters()).encode()).hexdigest()
        everybody = [mine] * self.grid.world_size
        dist.all_gather_object(everybody, mine, group=self.grid.control)
        orders = {everybody[rank] for rank in dist.get_process_group_ranks(self.grid.groups.dp)}
        assert orders == {mine}, "data-parallel ranks list parameters in another order"
        self._agreed = True

    @torch.no_grad()
    def _collected(self, logical: LogicalParameter, shard: Shard | None, kind: Kind, keeper: int) -> Tensor | None:
        """On the data rank `keeper` the whole fp32 tensor in new host memory, from the ranges of all; else None.

        By sums, a piece at a time: of each element one rank has the bits, the others zeros, and bits are added as
        integers, so that nothing is rounded. Single sends would move less, and open a communicator for each two ranks.
        """
        keeps = keeper == self.grid.data_rank
        if logical.spec.buffer:
            return logical.parameter.detach().to("cpu", copy=True) if keeps else None
        host = torch.empty(logical.numel, dtype=torch.float32) if keeps else None
        for start in range(0, logical.numel, _PIECE_ELEMENTS):
            stop = min(start + _PIECE_ELEMENTS, logical.numel)
            piece = torch.zeros(stop - start, dtype=torch.float32, device=self.grid.device)
            if shard is not None:
                first, last = max(start, shard.owned.start), min(stop, shard.owned.stop)
                if first < last:
                    mine = shard.tensors[kind][first - shard.owned.start : last - shard.owned.start]
                    piece[first - start : last - start].copy_(mine)
            if self.grid.data > 1:
                dist.reduce(piece.view(torch.int32), group=self.grid.groups.dp, group_dst=keeper)
            if host is not None:
                host[start:stop].copy_(piece)
        return None if host is None else host.view(logical.shape)


def moments(slot: MutableMapping[str, Any], master: Tensor) -> dict[Kind, Tensor]:
    """Those of `master` in what torch's AdamW keeps of it: made as it would make them, if there was no step yet."""
    for kind in MOMENTS:
        if kind.slot not in slot:
            slot[kind.slot] = torch.zeros_like(master, requires_grad=False)
    slot.setdefault("step", torch.tensor(0.0))
    return {kind: slot[kind.slot] for kind in MOMENTS}
