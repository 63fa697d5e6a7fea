"""The depth history through megatron-core's own pipeline schedules.

The schedules move "a tensor" from stage to stage. Here that tensor is a `HistoryPayload`, a bundle of the
sources and the partial, and the one method of megatron-core's communicator that moves bytes is overridden to
move each of them at its exact width, straight from where it was computed. The order of receives is the
schedule's table and the shapes are the wire plan's, so no shape is ever sent.

Seams (megatron-core 0.16.1): `forward_backward_func(p2p_communicator=, pg_collection=)`;
`P2PCommunicator._communicate`; and what the schedules touch of "the tensor": `retain_grad()`, `grad`,
`requires_grad`, `device`, and iteration by `torch.autograd.backward`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.pipeline_parallel.schedules import get_schedule_table
from megatron.core.transformer import TransformerConfig
from torch import Tensor

from attnres_train.depth.history import History, Slices
from attnres_train.parallel.grid import Grid
from attnres_train.parallel.wire import Hop, WirePlan


@dataclass(frozen=True)
class HistoryPayload:
    """The tensors of a history, which the schedule takes for one. `hop` says what they are."""

    slices: Slices
    hop: Hop

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.slices.all

    def opened(self) -> History:
        """The history on the receiving stage, its tensors being leaves there."""
        return History.received(self.slices, self.hop.sources)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def requires_grad(self) -> bool:
        return any(tensor.requires_grad for tensor in self.tensors)

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    def retain_grad(self) -> None:
        """The schedule asks so before a backward; received tensors are leaves and keep theirs anyway."""
        for tensor in self.tensors:
            tensor.retain_grad()

    @property
    def grad(self) -> HistoryPayload:
        """The gradients of all tensors, to be sent back. Raises RuntimeError where one is missing."""
        return HistoryPayload(
            Slices(
                tuple(
                    self._gradient(source, f"source {number}")
                    for number, source in zip(self.hop.sources, self.slices.sources, strict=True)
                ),
                None if self.slices.partial is None else self._gradient(self.slices.partial, "the partial"),
            ),
            self.hop,
        )

    def _gradient(self, tensor: Tensor, name: str) -> Tensor:
        if tensor.grad is None:
            raise RuntimeError(
                f"{name} came from stage {self.hop.from_stage} to stage {self.hop.to_stage} and got no gradient: "
                "its readers did not run backward"
            )
        return tensor.grad


@dataclass
class Traffic:
    """Bytes that this rank has sent, by direction."""

    forward_bytes: int = 0
    backward_bytes: int = 0


@dataclass
class _Transfer:
    """Transfers under way; keeps what is being sent alive until `wait`."""

    works: list[dist.Work]
    sent: list[Tensor]

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        self.works, self.sent = [], []


@dataclass
class _Messages:
    """One direction of one exchange: what goes out and what comes in, in plan order."""

    outgoing: list[Tensor] = field(default_factory=list)
    incoming: list[Tensor] = field(default_factory=list)

    @property
    def outgoing_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.outgoing)

    def start(self, to_rank: int, from_rank: int, group: dist.ProcessGroup) -> _Transfer:
        operations = [dist.P2POp(dist.isend, tensor, to_rank, group) for tensor in self.outgoing]
        operations += [dist.P2POp(dist.irecv, tensor, from_rank, group) for tensor in self.incoming]
        return _Transfer(dist.batch_isend_irecv(operations) if operations else [], self.outgoing)


class HistoryCommunicator(P2PCommunicator):
    """Moves `HistoryPayload`s. `slice_shape` is `[T, B, D]` as this rank holds it."""

    def __init__(
        self,
        grid: Grid,
        config: TransformerConfig,
        plan: WirePlan,
        slice_shape: tuple[int, int, int],
        dtype: torch.dtype,
    ):
        super().__init__(grid.groups.pp, config)
        self.grid = grid
        self.plan = plan
        self.slice_shape = slice_shape
        self.dtype = dtype
        self.traffic = Traffic()
        self._forward_order: Iterator[Hop] = iter(())
        self._backward_order: Iterator[Hop] = iter(())

    def begin(self, num_micro_batches: int, forward_only: bool) -> None:
        """Called before each run of a schedule: the order in which hops will arrive here."""
        visits = self._visits(num_micro_batches)
        self._forward_order = iter([self.plan.hop_into(stage) for stage in self._stages_fed(visits)])
        returns = [] if forward_only else [self.plan.hop_into(s + 1) for s in self._stages_returned_to(visits)]
        self._backward_order = iter(returns)

    def finish(self) -> None:
        """Called after each run of a schedule. Raises RuntimeError if a planned hop never came."""
        left = [*self._forward_order, *self._backward_order]
        if left:
            raise RuntimeError(f"{self.grid}: {len(left)} planned hops never arrived, first {left[0]}")

    def take_traffic(self) -> Traffic:
        """Bytes sent by this rank since this was last asked."""
        taken, self.traffic = self.traffic, Traffic()
        return taken

    def _visits(self, num_micro_batches: int) -> list[int]:
        """Chunk of each forward visit of a rank, in the schedule's order."""
        group = self.config.microbatch_group_size_per_vp_stage or self.plan.pipeline
        return [chunk for _, chunk in get_schedule_table(num_micro_batches, self.plan.virtual, group)]

    def _stages_fed(self, visits: list[int]) -> list[int]:
        """Stages of this rank in the order the previous rank feeds them.

        Rank 0 is fed by the last rank, which visits chunk c to feed rank 0's chunk c + 1.
        """
        rank, pipeline = self.grid.pipeline_rank, self.plan.pipeline
        stages = [c * pipeline + (rank - 1) % pipeline + 1 for c in visits]
        return [stage for stage in stages if stage < self.plan.num_stages]

    def _stages_returned_to(self, visits: list[int]) -> list[int]:
        """Stages of this rank in the order the next rank returns gradients to them.

        Backward visits run through the chunks from the last to the first.
        """
        rank, pipeline, virtual = self.grid.pipeline_rank, self.plan.pipeline, self.plan.virtual
        returning = [(virtual - 1 - c) * pipeline + (rank + 1) % pipeline for c in visits]
        return [stage - 1 for stage in returning if stage > 0]

    def _communicate(
        self,
        *,
        tensor_send_next: HistoryPayload | None,
        tensor_send_prev: HistoryPayload | None,
        recv_prev: bool,
        recv_next: bool,
        tensor_shape: object,
        wait_on_reqs: bool = True,
    ) -> tuple[HistoryPayload | None, HistoryPayload | None, dict[str, _Transfer] | None]:
        """One exchange with both neighbours, as megatron-core's schedules ask for it."""
        forward, backward = _Messages(), _Messages()
        received = self._receive(self._forward_order, forward, True) if recv_prev else None
        returned = self._receive(self._backward_order, backward, False) if recv_next else None
        if tensor_send_next is not None:
            forward.outgoing = [tensor.detach().contiguous() for tensor in tensor_send_next]
            self.traffic.forward_bytes += forward.outgoing_bytes
        if tensor_send_prev is not None:
            backward.outgoing = [tensor.contiguous() for tensor in tensor_send_prev]
            self.traffic.backward_bytes += backward.outgoing_bytes
        down = forward.start(self.next_rank, self.prev_rank, self.grid.groups.pp)
        up = backward.start(self.prev_rank, self.next_rank, self.grid.backward)
        if wait_on_reqs:
            down.wait()
            up.wait()
            return received, returned, None
        asked = {
            "send_next": tensor_send_next is not None and down,
            "recv_prev": recv_prev and down,
            "send_prev": tensor_send_prev is not None and up,
            "recv_next": recv_next and up,
        }
        return received, returned, {name: transfer for name, transfer in asked.items() if transfer}

    def _receive(self, order: Iterator[Hop], messages: _Messages, requires_grad: bool) -> HistoryPayload:
        hop = next(order, None)
        if hop is None:
            raise RuntimeError(f"{self.grid}: the schedule asked for a hop that is not in the wire plan")
        tensors = [
            torch.empty(self.slice_shape, dtype=self.dtype, device=self.grid.device, requires_grad=requires_grad)
            for _ in range(hop.slices)
        ]
        messages.incoming = [tensor.detach() for tensor in tensors]
        sources = tuple(tensors[: len(hop.sources)])
        return HistoryPayload(Slices(sources, tensors[-1] if hop.partial else None), hop)
