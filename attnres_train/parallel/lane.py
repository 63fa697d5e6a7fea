"""One direction of the pipeline's traffic on one rank: messages to one neighbour, messages from the other.

A lane has a process group of its own, so that with two ranks, where both neighbours are the same, messages of the
two directions cannot be taken for each other; nothing relies on tags, which NCCL has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor


@dataclass
class Exchange:
    """Tensors that go out and tensors that come in, in plan order. `sent` is told once the former have left."""

    outgoing: Sequence[Tensor] = ()
    incoming: Sequence[Tensor] = ()
    sent: Callable[[Iterable[Tensor]], None] | None = None

    @property
    def outgoing_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.outgoing)


@dataclass
class Transfer:
    """An exchange under way; keeps what is being sent alive until it has left."""

    sends: list[dist.Work] = field(default_factory=list)
    receives: list[dist.Work] = field(default_factory=list)
    exchange: Exchange = field(default_factory=Exchange)
    messages: list[Tensor] = field(default_factory=list)

    def wait_received(self) -> None:
        for work in self.receives:
            work.wait()
        self.receives = []

    def wait_sent(self) -> None:
        for work in self.sends:
            work.wait()
        self.sends, self.messages = [], []
        exchange, self.exchange = self.exchange, Exchange()
        if exchange.sent is not None:
            exchange.sent(exchange.outgoing)


@dataclass(frozen=True)
class Handle:
    """What megatron-core's schedules wait on."""

    wait: Callable[[], None]


class Lane:
    """Sends to `to_rank`, receives from `from_rank`; tensors are cut into messages of at most `chunk_bytes`."""

    def __init__(self, to_rank: int, from_rank: int, group: dist.ProcessGroup, chunk_bytes: int | None):
        self.to_rank, self.from_rank, self.group, self.chunk_bytes = to_rank, from_rank, group, chunk_bytes
        self._leaving = Transfer()

    def start(self, exchange: Exchange) -> Transfer:
        """Begin `exchange`. At most one is still leaving when the next one starts to."""
        outgoing = self._messages(exchange.outgoing)
        operations = [dist.P2POp(dist.isend, message, self.to_rank, self.group) for message in outgoing]
        operations += [
            dist.P2POp(dist.irecv, message, self.from_rank, self.group) for message in self._messages(exchange.incoming)
        ]
        works = dist.batch_isend_irecv(operations) if operations else []
        if len(works) == len(operations):
            sends, receives = works[: len(outgoing)], works[len(outgoing) :]
        else:  # NCCL joins a batch into one piece of work
            sends, receives = works, works
        transfer = Transfer(sends, receives, exchange, outgoing)
        if outgoing:
            self._leaving.wait_sent()
            self._leaving = transfer
        return transfer

    def finish(self) -> None:
        """Until everything has left."""
        self._leaving.wait_sent()

    def _messages(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Views of `tensors`, flat, each of at most `chunk_bytes`."""
        messages = []
        for tensor in tensors:
            flat = tensor.detach().contiguous().view(-1)
            if self.chunk_bytes is None:
                messages.append(flat)
            else:
                messages.extend(flat.split(max(1, self.chunk_bytes // tensor.element_size())))
        return messages
