"""The rules of NCCL laid over gloo, for tests on a machine without a GPU: what would hang or go wrong there does here.

With `Meeting` process groups, all but those that ask for gloo by name, keep these rules of torch's NCCL backend:

- A communicator forms at the first operation of its group, and the host waits there for every rank of the group.
- Two ranks of a group connect at their first exchange in each direction: the host waits until the peer posts its own.
- Operations of one communicator run one after the other, in the order in which they were issued; a batch of sends and
  receives is one operation. A receive that waits stands in the way of a later send.
- What is one operation on the one rank is one on the other: as many messages (NVIDIA/nccl#1279: else undefined).
- A single send or receive has a communicator of the two ranks for itself.
- A send reads its memory late. A receive writes at any time from posting on: it fills its memory with NaN at once.
- There are no tags, and no receives from anyone.

Every wait has a limit. Who is over it raises `Hang` with a table of what each rank was waiting for.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo
from torch.distributed import distributed_c10d as c10d

NAME = "rules"
LIMIT_SECONDS = 20.0
TOLD_SECONDS = 0.5
"""Who waits longer is on the board, which others read when they hang."""
LATE_SECONDS = 0.003
"""How long an operation that nobody waits for is put off: a buffer used again meanwhile is a wrong number."""
_POLL_SECONDS = 0.001

_KINDS = ("all", "_all", "broadcast", "reduce", "_reduce", "gather", "scatter", "barrier")
COLLECTIVES = tuple(name for name in dir(dist.ProcessGroup) if name.startswith(_KINDS))


class Hang(RuntimeError):
    """An operation was over its limit; the text is a table of all ranks."""


class RuleBroken(RuntimeError):
    """Something that NCCL does not have."""


class Work(dist.Work):
    """An operation on its way through the stream of its communicator."""

    def __init__(self, stream: Stream, words: str):
        super().__init__()
        self.stream, self.words = stream, words
        self.done, self.demanded = threading.Event(), threading.Event()
        self.error: BaseException | None = None

    def is_completed(self) -> bool:
        return self.done.is_set()

    def is_success(self) -> bool:
        return self.done.is_set() and self.error is None

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.demanded.set()
        _wait(self.stream.group, self.words, self.stream.state, self.done.wait)
        if self.error is not None:
            raise self.error
        return True


class Stream:
    """What one rank has issued on one communicator, one operation after the other."""

    def __init__(self, group: RulesGroup):
        self.group = group
        self._queue: queue.SimpleQueue[tuple[Work, Callable[[], None]]] = queue.SimpleQueue()
        self._at: Work | None = None
        threading.Thread(target=self._work, daemon=True).start()

    def put(self, words: str, run: Callable[[], None]) -> Work:
        work = Work(self, words)
        self._queue.put((work, run))
        return work

    def state(self) -> str:
        return "nothing" if self._at is None else f"runs: {self._at.words}"

    def _work(self) -> None:
        broken: BaseException | None = None
        while True:
            work, run = self._queue.get()
            self._at = work
            work.demanded.wait(LATE_SECONDS)
            try:
                if broken is None:
                    run()
            except BaseException as error:
                broken = error
            work.error = broken  # what is behind it on a broken communicator cannot run either
            work.done.set()


class RulesGroup(dist.ProcessGroup):
    """A process group under the rules; `gloo` moves the bytes."""

    def __init__(self, store: dist.Store, rank: int, size: int, _timeout: timedelta):
        super().__init__(rank, size)
        self.store, self.place, self.members = store, rank, size
        self.gloo = _gloo(store, rank, size)
        self.gloo_of_pair: dict[int, Stream] = {}
        self.stream = Stream(self)
        self.formed = size == 1
        self.connected: set[tuple[int, int]] = set()

    @property
    def label(self) -> str:
        return f"{self.group_desc} {dist.get_process_group_ranks(self)}"

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def batch(self, operations: Sequence[dist.P2POp]) -> list[Work]:
        """Sends and receives that are one operation, as between ncclGroupStart and ncclGroupEnd."""
        for operation in operations:
            if operation.tag:
                raise RuleBroken("NCCL has no tags")
        self._form()
        parts = [(operation.op is dist.isend, operation.tensor, operation.group_peer) for operation in operations]
        self._connect([(sends, peer) for sends, _, peer in parts])
        return [self._exchange(self.stream, parts)]

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> Work:
        return self._alone(True, tensors, peer, tag)

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> Work:
        return self._alone(False, tensors, peer, tag)

    def recv_anysource(self, *_: Any) -> Work:
        raise RuleBroken("NCCL has no receive from anyone")

    def _alone(self, sends: bool, tensors: list[Tensor], peer: int, tag: int) -> Work:
        if tag:
            raise RuleBroken("NCCL has no tags")
        if peer not in self.gloo_of_pair:
            low, high = sorted((self.place, peer))
            self._meet(f"two/{low}/{high}", [peer], "forms a communicator of two")
            self.gloo_of_pair[peer] = Stream(self)
        (tensor,) = tensors
        return self._exchange(self.gloo_of_pair[peer], [(sends, tensor, peer)])

    def _exchange(self, stream: Stream, parts: Sequence[tuple[bool, Tensor, int]]) -> Work:
        for sends, tensor, _ in parts:
            if not sends:
                tensor.data.fill_(float("nan") if tensor.is_floating_point() else -1)

        def run() -> None:
            self._agree_on_size(parts)
            works = [(self.gloo.send if sends else self.gloo.recv)([tensor], peer, 0) for sends, tensor, peer in parts]
            for work in works:
                work.wait()

        return stream.put(self._words(parts), run)

    def _agree_on_size(self, parts: Sequence[tuple[bool, Tensor, int]]) -> None:
        """A message goes ahead in each direction: how many this operation has for the peer."""
        counts = Counter((sends, peer) for sends, _, peer in parts)
        heads = {way: torch.tensor([count if way[0] else 0]) for way, count in counts.items()}
        ways = [(self.gloo.send if sends else self.gloo.recv)([head], peer, 0) for (sends, peer), head in heads.items()]
        for work in ways:
            work.wait()
        for (sends, peer), count in counts.items():
            if not sends and (sent := int(heads[sends, peer])) != count:
                raise RuleBroken(f"{sent} messages are sent together by rank {peer}, and {count} are received together")

    def _words(self, parts: Sequence[tuple[bool, Tensor, int]]) -> str:
        ranks = dist.get_process_group_ranks(self)
        ways = sorted({(sends, ranks[peer]) for sends, _, peer in parts})
        return " and ".join(f"{'send to' if sends else 'receive from'} rank {peer}" for sends, peer in ways)

    def _form(self) -> None:
        if not self.formed:
            self._meet("formed", range(self.members), "forms its communicator")
            self.formed = True

    def _connect(self, exchanges: Sequence[tuple[bool, int]]) -> None:
        """The first exchange of a pair in a direction: a key from each end, then each end waits for the other's."""
        ways = {(self.place, peer) if sends else (peer, self.place) for sends, peer in exchanges} - self.connected
        for sender, receiver in ways:
            self.store.set(f"{sender}to{receiver}/{self.place}", "")
        ranks = dist.get_process_group_ranks(self)
        for sender, receiver in sorted(ways):
            peer = receiver if sender == self.place else sender
            words = f"connects, rank {ranks[sender]} sends to rank {ranks[receiver]}"
            self._until_there(f"{sender}to{receiver}/{peer}", words, [peer])
        self.connected |= ways

    def _meet(self, key: str, others: Sequence[int], words: str) -> None:
        self.store.set(f"{key}/{self.place}", "")
        for other in others:
            if other != self.place:
                self._until_there(f"{key}/{other}", words, others)

    def _until_there(self, key: str, words: str, others: Sequence[int]) -> None:
        def there(seconds: float) -> bool:
            deadline = time.monotonic() + seconds
            while not self.store.check([key]):
                if time.monotonic() > deadline:
                    return False
                time.sleep(_POLL_SECONDS)
            return True

        ranks = dist.get_process_group_ranks(self)
        absent = int(key.rpartition("/")[2])
        _wait(self, words, lambda: f"rank {ranks[absent]}", there)


def _gloo(store: dist.Store, rank: int, size: int) -> dist.ProcessGroup:
    backend = ProcessGroupGloo(store, rank, size, timedelta(seconds=10 * LIMIT_SECONDS))
    group = dist.ProcessGroup(store, rank, size)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    return group


def _collective(name: str) -> Callable[..., Work]:
    def call(self: RulesGroup, *arguments: Any, **options: Any) -> Work:
        self._form()
        return self.stream.put(name, lambda: getattr(self.gloo, name)(*arguments, **options).wait())

    return call


for _name in COLLECTIVES:
    setattr(RulesGroup, _name, _collective(_name))


def _wait(group: RulesGroup, words: str, on: Callable[[], str], ready: Callable[[float], bool]) -> None:
    """Until `ready`, which takes the seconds it may wait. Raises Hang after the limit."""
    if ready(TOLD_SECONDS):
        return
    rank, board = dist.get_rank(), c10d._get_default_store()
    board.set(f"board/{rank}", json.dumps([group.label, words, on()]))
    if ready(LIMIT_SECONDS - TOLD_SECONDS):
        board.set(f"board/{rank}", json.dumps(None))
        return
    time.sleep(2 * TOLD_SECONDS)
    raise Hang(_table(board))


def _table(board: dist.Store) -> str:
    rows = [("rank", "group", "operation", "waits for")]
    for rank in range(dist.get_world_size()):
        key = f"board/{rank}"
        state = json.loads(board.get(key)) if board.check([key]) else None
        rows.append((str(rank), *(state or ("-", "computes, or is done", "-"))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "hangs:\n" + "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _batch_isend_irecv(operations: list[dist.P2POp]) -> list[Any]:
    group = operations[0].group or c10d._get_default_group()
    return group.batch(operations) if isinstance(group, RulesGroup) else _GLOO_BATCH(operations)


_GLOO_BATCH = dist.batch_isend_irecv


class Meeting:
    """Ranks of a world whose groups keep the rules; they meet at a store of rank 0, whose port is in `folder`."""

    most_ranks: int | None = None

    def __init__(self, folder: Path):
        self.port = folder / "port"

    def join(self, rank: int, world: int) -> None:
        """Called by a forked rank."""
        if NAME.upper() not in dist.Backend._plugins:
            dist.Backend.register_backend(NAME, RulesGroup, devices=["cpu"])
        dist.batch_isend_irecv = c10d.batch_isend_irecv = _batch_isend_irecv
        dist.init_process_group(NAME, store=self._store(rank), rank=rank, world_size=world)

    def _store(self, rank: int) -> dist.Store:
        # Not of the parent: a rank is forked, and would end when it collects a server whose thread it has not.
        timeout = timedelta(seconds=3 * LIMIT_SECONDS)
        if rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timeout)
            self.port.with_suffix(".new").write_text(str(store.port))
            self.port.with_suffix(".new").rename(self.port)
            return store
        while not self.port.exists():
            time.sleep(_POLL_SECONDS)
        return dist.TCPStore("127.0.0.1", int(self.port.read_text()), is_master=False, timeout=timeout)
