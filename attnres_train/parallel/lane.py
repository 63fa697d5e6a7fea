"""One direction of the pipeline's traffic on one rank: messages to one neighbour, messages from the other.

What a rank sends and what it receives go through process groups of their own (`Grid.lanes`). So with two ranks,
where both neighbours are the same, no message is taken for one of the other direction; nothing relies on tags, which
NCCL has not; and no receive waits in a queue behind a send that waits for its peer.

What is one operation for the sender is one for the receiver: NCCL leaves it undefined what comes of messages that one
rank has put together and the other has not (NVIDIA/nccl#1279), and of very many together (pytorch/pytorch#174942).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

from attnres_train.parallel.pool import BufferPool
from attnres_train.parallel.schedule import Arrival
from attnres_train.parallel.stopwatch import Stopwatch

MOST_TOGETHER = 128
"""Messages of one operation."""


@dataclass
class Transfer:
    """Messages under way; keeps their memory until they are through, then tells `done`."""

    stopwatch: Stopwatch
    works: list[dist.Work] = field(default_factory=list)
    messages: list[Tensor] = field(default_factory=list)
    done: Callable[[], None] | None = None

    @property
    def is_through(self) -> bool:
        return all(work.is_completed() for work in self.works)

    def wait(self) -> None:
        with self.stopwatch.phase("waiting"):
            for work in self.works:
                work.wait()
        self.works, self.messages = [], []
        done, self.done = self.done, None
        if done is not None:
            done()


class Incoming(NamedTuple):
    """A message on its way in, with the buffers it will fill."""

    arrival: Arrival
    tensors: tuple[Tensor, ...]
    transfer: Transfer


def in_batches(messages: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    """As many together as become one operation, cut alike by who sends and who receives them."""
    for start in range(0, len(messages), MOST_TOGETHER):
        yield messages[start : start + MOST_TOGETHER]


class Lane:
    """Sends to `to_rank`, receives from `from_rank`.

    Tensors are cut into messages of at most `chunk_bytes`; at most `max_leaving` sends are under way. `apart`: each
    tensor is an operation of its own, since some of those that are received together are sent before the others.
    """

    def __init__(
        self,
        to_rank: int,
        from_rank: int,
        groups: tuple[dist.ProcessGroup, dist.ProcessGroup],
        chunk_bytes: int | None,
        max_leaving: int,
        stopwatch: Stopwatch,
        *,
        apart: bool = False,
    ):
        self.to_rank, self.from_rank = to_rank, from_rank
        self.send_group, self.receive_group = groups
        self.chunk_bytes, self.max_leaving = chunk_bytes, max_leaving
        self.stopwatch, self.apart = stopwatch, apart
        self._leaving: deque[Transfer] = deque()

    def send(self, tensors: Sequence[Tensor], done: Callable[[], None] | None = None) -> Transfer:
        """Begin to send `tensors` straight from where they are; `done` is told once they have left."""
        transfer = self._begin(dist.isend, tensors, self.to_rank, self.send_group, done)
        self._leaving.append(transfer)
        self._let_go()
        return transfer

    def receive(self, tensors: Sequence[Tensor]) -> Transfer:
        """Begin to receive into `tensors`, which are contiguous."""
        self._let_go()
        return self._begin(dist.irecv, tensors, self.from_rank, self.receive_group)

    def _begin(
        self,
        way: Callable[..., object],
        tensors: Sequence[Tensor],
        peer: int,
        group: dist.ProcessGroup,
        done: Callable[[], None] | None = None,
    ) -> Transfer:
        transfer = Transfer(self.stopwatch, done=done)
        for part in ([tensor] for tensor in tensors) if self.apart else [tensors]:
            for messages in in_batches(self._messages(part)):
                operations = [dist.P2POp(way, message, peer, group) for message in messages]
                transfer.works += dist.batch_isend_irecv(operations)
                transfer.messages += messages
        return transfer

    def _let_go(self) -> None:
        while self._leaving and (len(self._leaving) > self.max_leaving or self._leaving[0].is_through):
            self._leaving.popleft().wait()

    def finish(self) -> None:
        """Until everything has left."""
        while self._leaving:
            self._leaving.popleft().wait()

    def _messages(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """`tensors` flat, as views, each cut at `chunk_bytes`."""
        messages: list[Tensor] = []
        for tensor in tensors:
            flat = tensor.detach().contiguous().view(-1)
            elements = flat.numel() if self.chunk_bytes is None else self.chunk_bytes // tensor.element_size()
            messages.extend(flat.split(max(1, elements)))
        return messages


class Inbox:
    """What a rank will receive on one lane, in planned order, `ahead` messages of it posted before they are asked for.

    `slices` says of how many buffers of `pool` a message is.
    """

    def __init__(
        self, lane: Lane, pool: BufferPool, order: Iterable[Arrival], slices: Callable[[Arrival], int], ahead: int
    ):
        self.lane, self.pool, self.slices, self.ahead = lane, pool, slices, ahead
        self._expected = deque(order)
        self._posted: deque[Incoming] = deque()
        self._post()

    def next(self) -> Incoming | None:
        """The next message, under way; None where the plan knows of no more."""
        if not self._posted:
            self._post(1)
        message = self._posted.popleft() if self._posted else None
        self._post()
        return message

    def left(self) -> list[Arrival]:
        """What was never asked for."""
        return [*(message.arrival for message in self._posted), *self._expected]

    def _post(self, least: int = 0) -> None:
        while self._expected and len(self._posted) < max(self.ahead, least):
            arrival = self._expected.popleft()
            tensors = tuple(self.pool.take() for _ in range(self.slices(arrival)))
            self._posted.append(Incoming(arrival, tensors, self.lane.receive(tensors)))
