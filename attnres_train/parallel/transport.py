"""The depth history through megatron-core's own pipeline schedules.

The schedules move "a tensor" from stage to stage. Here that tensor is a bundle: `Outgoing` where a stage hands its
history on, `Incoming` where the next one receives it; and the one method of megatron-core's communicator that moves
bytes is overridden to move each source as its own message, straight from where it was computed. The order of
receives is the schedule's and the shapes are the wire plan's, so no shape is ever sent.

Seams (megatron-core 0.16.1): `forward_backward_func(p2p_communicator=, pg_collection=)`;
`P2PCommunicator._communicate`; and what the schedules touch of "the tensor": `retain_grad()` and `grad` of an input,
`requires_grad`, `device` and iteration by `torch.autograd.backward` of an output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.transformer import TransformerConfig
from torch import Tensor

from attnres_train.depth.history import History
from attnres_train.parallel.cache import Departure, HistoryCache, HistoryError
from attnres_train.parallel.grid import Grid
from attnres_train.parallel.lane import Exchange, Handle, Lane
from attnres_train.parallel.pool import BufferPool
from attnres_train.parallel.schedule import Schedule
from attnres_train.parallel.wire import WirePlan


@dataclass(frozen=True)
class Outgoing:
    """What a stage hands on, which the schedule takes for its output tensor."""

    departure: Departure

    def __iter__(self) -> Iterator[Tensor]:
        """For `torch.autograd.backward`: the tensors that get a gradient back."""
        return iter(self.departure.tapped)

    def __len__(self) -> int:
        return len(self.departure.tapped)

    @property
    def requires_grad(self) -> bool:
        return any(tensor.requires_grad for tensor in self.departure.tapped)

    @property
    def device(self) -> torch.device:
        return self.departure.tapped[0].device


@dataclass(frozen=True)
class Incoming:
    """What a stage receives, which the schedule takes for its input tensor."""

    received: tuple[Tensor, ...]
    micro_batch: int
    stage: int
    cache: HistoryCache

    def opened(self) -> History:
        """The history on the receiving stage, with what its rank holds already."""
        return self.cache.arrive(self.micro_batch, self.stage, self.received)

    def retain_grad(self) -> None:
        """The schedule asks so before a backward; gradients wait in the history's own buffers."""

    @property
    def grad(self) -> tuple[Tensor, ...]:
        """The gradients to be sent back, settled against the plan; the schedule asks once, after the backward."""
        return self.cache.returned(self.micro_batch, self.stage)


class Arrival(NamedTuple):
    """A message to come: of which micro-batch, for (or, of gradients, back to) which stage."""

    micro_batch: int
    stage: int


@dataclass
class Traffic:
    """Bytes that this rank has sent, by direction."""

    forward_bytes: int = 0
    backward_bytes: int = 0


class HistoryCommunicator(P2PCommunicator):
    """Moves histories. `pool` has buffers of the slices' shape as this rank holds them."""

    def __init__(
        self,
        grid: Grid,
        config: TransformerConfig,
        plan: WirePlan,
        pool: BufferPool,
        chunk_bytes: int | None = None,
    ):
        super().__init__(grid.groups.pp, config)
        self.grid = grid
        self.plan = plan
        self.pool = pool
        self.cache = HistoryCache(plan, grid.pipeline_rank, pool, str(grid))
        self.traffic = Traffic()
        self.forward = Lane(self.next_rank, self.prev_rank, grid.groups.pp, chunk_bytes)
        self.backward = Lane(self.prev_rank, self.next_rank, grid.backward, chunk_bytes)
        self._arrivals: Iterator[Arrival] = iter(())
        self._returns: Iterator[Arrival] = iter(())

    def begin(self, num_micro_batches: int, forward_only: bool) -> None:
        """Called before each run of a schedule: the order in which messages will arrive here."""
        group = self.config.microbatch_group_size_per_vp_stage
        schedule = Schedule(self.plan.pipeline, self.plan.virtual, num_micro_batches, group)
        self._arrivals = iter(arrivals(schedule, self.grid.pipeline_rank))
        self._returns = iter(() if forward_only else returns(schedule, self.grid.pipeline_rank))

    def finish(self) -> None:
        """Called after each run of a schedule. Raises HistoryError for what never came or was not released."""
        left = [*self._arrivals, *self._returns]
        if left:
            raise HistoryError(f"{self.grid}: {len(left)} planned messages never arrived, first {left[0]}")
        self.forward.finish()
        self.backward.finish()
        self.cache.finish()

    def abandon(self) -> None:
        """Called after an exception in a schedule: let go of all tensors."""
        self.cache.clear()

    def take_traffic(self) -> Traffic:
        """Bytes sent by this rank since this was last asked."""
        taken, self.traffic = self.traffic, Traffic()
        return taken

    def _communicate(
        self,
        *,
        tensor_send_next: Outgoing | None,
        tensor_send_prev: Sequence[Tensor] | None,
        recv_prev: bool,
        recv_next: bool,
        tensor_shape: object,
        wait_on_reqs: bool = True,
    ) -> tuple[Incoming | None, tuple[Tensor, ...] | None, dict[str, Handle] | None]:
        """One exchange with both neighbours, as megatron-core's schedules ask for it."""
        down, up = Exchange(), Exchange()
        received = self._expect(self._arrivals, down) if recv_prev else None
        returned = self._expect_gradients(self._returns, up) if recv_next else None
        if tensor_send_next is not None:
            down.outgoing = tensor_send_next.departure.travelling
            self.traffic.forward_bytes += down.outgoing_bytes
        if tensor_send_prev is not None:
            up.outgoing, up.sent = tuple(tensor_send_prev), self.pool.give
            self.traffic.backward_bytes += up.outgoing_bytes
        forward, backward = self.forward.start(down), self.backward.start(up)
        if wait_on_reqs:
            forward.wait_received()
            backward.wait_received()
            return received, returned, None
        handles = {}
        if tensor_send_next is not None:
            handles["send_next"] = Handle(forward.wait_sent)
        if recv_prev:
            handles["recv_prev"] = Handle(forward.wait_received)
        if tensor_send_prev is not None:
            handles["send_prev"] = Handle(backward.wait_sent)
        if recv_next:
            handles["recv_next"] = Handle(backward.wait_received)
        return received, returned, handles

    def _expect(self, order: Iterator[Arrival], exchange: Exchange) -> Incoming:
        arrival = self._next(order)
        exchange.incoming = tuple(self.pool.take() for _ in range(self.plan.hop_into(arrival.stage).slices))
        return Incoming(exchange.incoming, *arrival, self.cache)

    def _expect_gradients(self, order: Iterator[Arrival], exchange: Exchange) -> tuple[Tensor, ...]:
        arrival = self._next(order)
        exchange.incoming = tuple(self.pool.take() for _ in range(self.plan.hop_into(arrival.stage + 1).slices_back))
        return exchange.incoming

    def _next(self, order: Iterator[Arrival]) -> Arrival:
        arrival = next(order, None)
        if arrival is None:
            raise HistoryError(f"{self.grid}: the schedule asked for a message that is not in the wire plan")
        return arrival


def arrivals(schedule: Schedule, rank: int) -> list[Arrival]:
    """Histories in the order the previous rank sends them to `rank`.

    Rank 0 is fed by the last rank, which visits chunk c to feed rank 0's chunk c + 1.
    """
    pipeline, stages = schedule.pipeline, schedule.pipeline * schedule.virtual
    fed = [Arrival(m, c * pipeline + (rank - 1) % pipeline + 1) for m, c in schedule.forwards()]
    return [arrival for arrival in fed if arrival.stage < stages]


def returns(schedule: Schedule, rank: int) -> list[Arrival]:
    """Gradients in the order the next rank returns them, by the stage of `rank` that they are for."""
    pipeline = schedule.pipeline
    senders = [(m, c * pipeline + (rank + 1) % pipeline) for m, c in schedule.backwards()]
    return [Arrival(m, stage - 1) for m, stage in senders if stage > 0]
