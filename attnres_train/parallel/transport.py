"""The depth history through megatron-core's own pipeline schedules.

The schedules move "a tensor" from stage to stage. Here that tensor is a bundle: `Outgoing` where a stage hands its
history on, `Received` where the next one receives it; and the one method of megatron-core's communicator that moves
bytes is overridden to move each source as its own message, straight from where it was computed. The order of
receives is the schedule's and the shapes are the wire plan's, so no shape is ever sent.

Seams (megatron-core 0.16.1): `forward_backward_func(p2p_communicator=, pg_collection=)`;
`P2PCommunicator._communicate`; and what the schedules touch of "the tensor": `retain_grad()` and `grad` of an input,
`requires_grad`, `device` and iteration by `torch.autograd.backward` of an output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.transformer import TransformerConfig
from torch import Tensor

from attnres_train.depth.history import History
from attnres_train.parallel.cache import Departure, HistoryCache, HistoryError
from attnres_train.parallel.grid import Grid
from attnres_train.parallel.lane import Inbox, Incoming, Lane, Transfer
from attnres_train.parallel.offload import HostOffload, side_of
from attnres_train.parallel.pool import BufferPool
from attnres_train.parallel.schedule import Arrival, Schedule
from attnres_train.parallel.stopwatch import Stopwatch
from attnres_train.parallel.wire import WirePlan


@dataclass(frozen=True)
class Outgoing:
    """What a stage hands on, which the schedule takes for its output tensor."""

    departure: Departure
    cache: HistoryCache

    def __iter__(self) -> Iterator[Tensor]:
        """For `torch.autograd.backward`, which is about to run: the tensors that get a gradient back."""
        self.cache.wanted(self.departure.micro_batch, self.departure.stage)
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
class Received:
    """What a stage receives, which the schedule takes for its input tensor."""

    tensors: tuple[Tensor, ...]
    micro_batch: int
    stage: int
    cache: HistoryCache

    def opened(self) -> History:
        """The history on the receiving stage, with what its rank holds already."""
        return self.cache.arrive(self.micro_batch, self.stage, self.tensors)

    def retain_grad(self) -> None:
        """The schedule asks so before a backward; gradients wait in the history's own buffers."""

    @property
    def grad(self) -> tuple[Tensor, ...]:
        """The gradients to be sent back, settled against the plan; the schedule asks once, after the backward."""
        return self.cache.returned(self.micro_batch, self.stage)


@dataclass
class Traffic:
    """Bytes that this rank has sent, by direction, and the most of the depth history that it has kept at once."""

    forward_bytes: int = 0
    backward_bytes: int = 0
    kept_bytes: int = 0


class HistoryCommunicator(P2PCommunicator):
    """Moves histories. `pool` has buffers of the slices' shape as this rank holds them.

    `eager`: receives are posted one message ahead, and `progress` sends sources while their stage still computes.
    """

    def __init__(
        self,
        grid: Grid,
        megatron: TransformerConfig,
        plan: WirePlan,
        pool: BufferPool,
        stopwatch: Stopwatch,
        *,
        chunk_bytes: int | None = None,
        eager: bool = False,
        offload: bool = False,
    ):
        super().__init__(grid.groups.pp, megatron)
        self.grid = grid
        self.plan = plan
        self.pool = pool
        self.eager = eager
        held_back = HostOffload(side_of(grid.device)) if offload else None
        self.cache = HistoryCache(plan, grid.pipeline_rank, pool, str(grid), held_back)
        self.traffic = Traffic()
        forward, backward = grid.lane_groups(1), grid.lane_groups(-1)
        # Two messages, of which one may be sent source by source.
        leaving = 2 * (plan.slices_max + 1) if eager else 2
        self.forward = Lane(self.next_rank, self.prev_rank, forward, chunk_bytes, leaving, stopwatch, apart=eager)
        self.backward = Lane(self.prev_rank, self.next_rank, backward, chunk_bytes, 2, stopwatch)
        self._arrivals, self._returns = self._inboxes([], [])

    def begin(self, schedule: Schedule, forward_only: bool) -> None:
        """Called before each run of `schedule`: the order in which messages will arrive here."""
        rank = self.grid.pipeline_rank
        backwards = [] if forward_only else schedule.backwards()
        self.cache.begin([(m, chunk * schedule.pipeline + rank) for m, chunk in backwards])
        self._arrivals, self._returns = self._inboxes(
            schedule.arrivals(rank), [] if forward_only else schedule.returns(rank)
        )

    def finish(self) -> Traffic:
        """Called after each run of a schedule: what this rank has sent and kept during it.

        Raises HistoryError for what never came or was not released.
        """
        left = [*self._arrivals.left(), *self._returns.left()]
        if left:
            raise HistoryError(f"{self.grid}: {len(left)} planned messages never arrived, first {left[0]}")
        self.forward.finish()
        self.backward.finish()
        self.cache.finish()
        taken, self.traffic = self.traffic, Traffic()
        return replace(taken, kept_bytes=self.cache.take_peak_slices() * self.pool.slice_bytes)

    def abandon(self) -> None:
        """Called after an exception in a schedule: let go of all tensors."""
        self.cache.clear()

    def progress(self, micro_batch: int, stage: int, history: History) -> None:
        """The history of a stage that still computes: what it owes the next one and is complete can go."""
        self._send_forward(self.cache.complete(micro_batch, stage, history))

    def _send_forward(self, tensors: Sequence[Tensor], gone: Callable[[], None] | None = None) -> Transfer:
        self.traffic.forward_bytes += _bytes(tensors)
        return self.forward.send(tensors, gone)

    def _communicate(
        self,
        *,
        tensor_send_next: Outgoing | None,
        tensor_send_prev: tuple[Tensor, ...] | None,
        recv_prev: bool,
        recv_next: bool,
        tensor_shape: object,
        wait_on_reqs: bool = True,
    ) -> tuple[Received | None, tuple[Tensor, ...] | None, dict[str, Transfer] | None]:
        """One exchange with both neighbours, as megatron-core's schedules ask for it."""
        under_way = {}
        received, returned = None, None
        if tensor_send_next is not None:
            departure = tensor_send_next.departure
            gone = partial(self.cache.left, departure.micro_batch, departure.stage)
            under_way["send_next"] = self._send_forward(departure.travelling, gone)
        if recv_prev:
            message = self._next(self._arrivals)
            received, under_way["recv_prev"] = Received(message.tensors, *message.arrival, self.cache), message.transfer
        if tensor_send_prev is not None:
            self.traffic.backward_bytes += _bytes(tensor_send_prev)
            give_back = partial(self.pool.give, tensor_send_prev)
            under_way["send_prev"] = self.backward.send(tensor_send_prev, give_back)
        if recv_next:
            message = self._next(self._returns)
            returned, under_way["recv_next"] = message.tensors, message.transfer
        if not wait_on_reqs:
            return received, returned, under_way
        for name, transfer in under_way.items():
            if name.startswith("recv"):  # sends keep their memory themselves
                transfer.wait()
        return received, returned, None

    def _inboxes(self, arrivals: Iterable[Arrival], returns: Iterable[Arrival]) -> tuple[Inbox, Inbox]:
        def history(arrival: Arrival) -> int:
            return self.plan.hop_into(arrival.stage).slices

        def gradients(arrival: Arrival) -> int:
            return self.plan.hop_into(arrival.stage + 1).slices_back

        ahead = int(self.eager)
        return (
            Inbox(self.forward, self.pool, arrivals, history, ahead),
            Inbox(self.backward, self.pool, returns, gradients, ahead),
        )

    def _next(self, inbox: Inbox) -> Incoming:
        message = inbox.next()
        if message is None:
            raise HistoryError(f"{self.grid}: the schedule asked for a message that is not in the wire plan")
        return message


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
