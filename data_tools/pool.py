"""Work shared among processes: results in the order of the items, progress on the way, deaths noticed at once."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Protocol, TypeVar

from attnres_train.errors import Refused, refuse
from attnres_train.launch.cores import usable_cores
from attnres_train.launch.process import end_with_parent

Item = TypeVar("Item")
Result = TypeVar("Result")

IN_HAND = 2
"""Items a worker is handed, so that it need not wait for this process between two."""
POLL_SECONDS = 0.2
"""How often progress is told while no result comes."""


def available_cpus() -> int:
    """CPUs that this process may use, of which a container may have a share."""
    return usable_cores()


class Advance(Protocol):
    """Told by the work how far it has come since it last told."""

    def __call__(self, read_bytes: int, tokens: int = 0) -> None: ...


@dataclass(frozen=True)
class _Failure:
    error: Refused | OSError | str
    """The exception where it speaks for itself, else a traceback."""


@dataclass
class _Worker:
    number: int
    process: BaseProcess
    pipe: Connection
    when_killed: str
    items: deque[int] = field(default_factory=deque)
    """Numbers of the items it was handed, the first of which it works on."""


class WorkerPool(Generic[Item, Result]):
    """`work` in `num_workers` forked processes, or in this one for 1; to be used in a `with` block.

    Forking shares what `work` holds (a tokenizer) instead of loading it again. Workers end with this process, however
    that ends. `on_progress` is told what all workers have told so far, in this process. `when_killed` is the remedy for
    too much memory. `fork` makes a process for a single worker too: for a library that hears no signal before it is
    done.
    """

    def __init__(
        self,
        work: Callable[[Item, Advance], Result],
        num_workers: int,
        on_progress: Callable[[int, int], None] | None = None,
        when_killed: str = "use fewer --workers or free memory, then run again",
        fork: bool = False,
    ):
        self._work = work
        self._on_progress = on_progress or (lambda read_bytes, tokens: None)
        # Written by one worker each, read by all: no lock, no message.
        self._told = multiprocessing.RawArray("q", 2 * num_workers)
        self._when_killed = when_killed
        self._alone = num_workers == 1 and not fork
        self._workers: list[_Worker] = []
        if not self._alone:
            for number in range(num_workers):
                self._workers.append(self._start(number))

    def __enter__(self) -> WorkerPool[Item, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()

    def map(self, items: Iterable[Item]) -> Iterator[Result]:
        """`work` of each item, in order; results that come early are kept, so they should be small.

        Raises what `work` raised where that is Refused or OSError, RuntimeError with the worker's traceback for
        anything else, and Refused where a worker was killed, naming the signal.
        """
        if self._alone:
            for item in items:
                yield self._work(item, self._advance(0))
                self._tell()
            return
        numbered = enumerate(items)
        done: dict[int, Result] = {}
        next_out = 0
        while True:
            self._hand_out(numbered)
            while next_out in done:
                yield done.pop(next_out)
                next_out += 1
            busy = [worker for worker in self._workers if worker.items]
            if not busy:
                return
            for worker in _ready(busy):
                done[worker.items[0]] = _receive(worker)
                worker.items.popleft()
            self._tell()

    def _hand_out(self, numbered: Iterator[tuple[int, Item]]) -> None:
        # One each before a second for any: the first items may be all there are.
        for held in range(IN_HAND):
            for worker in self._workers:
                if len(worker.items) == held and (following := next(numbered, None)) is not None:
                    number, item = following
                    _send(worker, item)
                    worker.items.append(number)

    def _tell(self) -> None:
        told = list(self._told)
        self._on_progress(sum(told[0::2]), sum(told[1::2]))

    def _advance(self, number: int) -> Advance:
        """What worker `number` tells its progress with."""
        told = self._told

        def advance(read_bytes: int, tokens: int = 0) -> None:
            told[2 * number] += read_bytes
            told[2 * number + 1] += tokens
            if self._alone:
                self._tell()

        return advance

    def _start(self, number: int) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        inherited = [ours, *(worker.pipe for worker in self._workers)]
        process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(self._work, self._advance(number), theirs, inherited), daemon=True
        )
        process.start()
        theirs.close()
        return _Worker(number, process, ours, self._when_killed)


def _serve(
    work: Callable[[Any, Advance], Any], advance: Advance, pipe: Connection, inherited: list[Connection]
) -> None:
    """The life of a worker: an item in, a result out, until the pipe closes."""
    end_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who waits
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    # Copies of the parent's ends would keep the pipes open after the parent's death.
    for other in inherited:
        other.close()
    while True:
        try:
            item = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            result = work(item, advance)
        except (Refused, OSError) as error:
            result = _Failure(error)
        except Exception:
            result = _Failure(traceback.format_exc())
        try:
            pipe.send(result)
        except ConnectionError:
            return


def _ready(workers: list[_Worker]) -> list[_Worker]:
    """Those that have a result or are dead, after a short wait; a dead one's pipe reads as ended."""
    readable = set(wait([worker.pipe for worker in workers], timeout=POLL_SECONDS))
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
        if isinstance(result.error, str):
            raise RuntimeError(f"worker {worker.number} failed:\n{result.error}")
        raise result.error
    return result


def _death(worker: _Worker) -> Refused:
    worker.process.join(timeout=5)
    code = worker.process.exitcode
    key = f"worker {worker.number} (process {worker.process.pid})"
    if code == -signal.SIGKILL:
        remedy = f"most often memory ran out: {worker.when_killed}"
        return refuse(key, "was killed by signal 9 (SIGKILL); nothing was published", remedy)
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
    return refuse(key, f"{how}; nothing was published", "run again; with --workers 1 the work is in one process")
