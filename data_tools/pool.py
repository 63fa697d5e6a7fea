"""Work shared among processes: results in the order of the items, bounded memory, deaths noticed at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Generic, TypeVar

from attnres_train.errors import Refused, refuse

Item = TypeVar("Item")
Result = TypeVar("Result")

ITEMS_AHEAD = 4
"""Items a worker that may be handed out beyond the oldest unfinished one."""


def available_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class _Failure:
    traceback: str


@dataclass
class _Worker:
    number: int
    process: BaseProcess
    pipe: Connection
    item: int | None = None
    """Number of the item it works on."""


class WorkerPool(Generic[Item, Result]):
    """`work` in `num_workers` forked processes, or in this one for 1; to be used in a `with` block.

    Forking shares what `work` holds (a tokenizer) instead of loading it again. Workers end when their pipe
    closes, so none outlives this process, however it ends.
    """

    def __init__(self, work: Callable[[Item], Result], num_workers: int):
        self._work = work
        self._workers: list[_Worker] = []
        if num_workers > 1:
            for number in range(num_workers):
                self._workers.append(self._start(number))

    def __enter__(self) -> WorkerPool[Item, Result]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()

    def map(self, items: Iterable[Item]) -> Iterator[Result]:
        """`work` of each item, in order.

        Raises Refused where a worker was killed, naming the signal, and RuntimeError with the worker's
        traceback where `work` raised.
        """
        if not self._workers:
            yield from map(self._work, items)
            return
        numbered = enumerate(items)
        done: dict[int, Result] = {}
        next_out = handed_out = 0
        while True:
            idle = [worker for worker in self._workers if worker.item is None]
            room = max(0, next_out + ITEMS_AHEAD * len(self._workers) - handed_out)
            for worker, (number, item) in zip(idle[:room], numbered, strict=False):
                worker.item = number
                _send(worker, item)
                handed_out += 1
            while next_out in done:
                yield done.pop(next_out)
                next_out += 1
            busy = [worker for worker in self._workers if worker.item is not None]
            if not busy and room:
                return
            for worker in _ready(busy):
                assert worker.item is not None
                done[worker.item] = _receive(worker)
                worker.item = None

    def _start(self, number: int) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        inherited = [ours, *(worker.pipe for worker in self._workers)]
        process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(self._work, theirs, inherited), daemon=True
        )
        process.start()
        theirs.close()
        return _Worker(number, process, ours)


def _serve(work: Callable[[Any], Any], pipe: Connection, inherited: list[Connection]) -> None:
    """The life of a worker: an item in, a result out, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Copies of the parent's ends would keep the pipes open after the parent's death.
    for other in inherited:
        other.close()
    while True:
        try:
            item = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            result = work(item)
        except Exception:
            result = _Failure(traceback.format_exc())
        try:
            pipe.send(result)
        except ConnectionError:
            return


def _ready(workers: list[_Worker]) -> list[_Worker]:
    """Those that have a result or are dead, waiting for one; a dead one's pipe reads as ended."""
    if not workers:
        return []
    readable = set(wait([worker.pipe for worker in workers]))
    return [worker for worker in workers if worker.pipe in readable]


def _send(worker: _Worker, item: object) -> None:
    try:
        worker.pipe.send(item)
    except ConnectionError:
        raise _death(worker) from None


def _receive(worker: _Worker) -> Any:
    try:
        result = worker.pipe.recv()
    except (EOFError, OSError):
        # OSError: it died in the middle of a message.
        raise _death(worker) from None
    if isinstance(result, _Failure):
        raise RuntimeError(f"worker {worker.number} failed:\n{result.traceback}")
    return result


def _death(worker: _Worker) -> Refused:
    worker.process.join(timeout=5)
    code = worker.process.exitcode
    key = f"worker {worker.number} (process {worker.process.pid})"
    if code == -signal.SIGKILL:
        remedy = "most often memory ran out: use fewer --workers or free memory, then run again"
        return refuse(key, "was killed by signal 9 (SIGKILL); nothing was published", remedy)
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
    return refuse(key, f"{how}; nothing was published", "run again; with --workers 1 the work is in one process")
