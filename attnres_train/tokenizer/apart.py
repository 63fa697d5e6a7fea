"""Work in a process of its own, for a library that hears no signal before it is done."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Generic, TypeVar

from attnres_train.errors import Refused, refuse
from attnres_train.launch.process import end_with_parent

Result = TypeVar("Result")

POLL_SECONDS = 0.2
"""How often signals are heard, and progress is told, while the work goes on."""


class Apart(Generic[Result]):
    """`work` in a forked process, begun with the `with` block and ended with it, however that ends.

    What `work` holds is shared by the fork; whoever began it may then let go of it.
    """

    def __init__(self, work: Callable[[], Result]):
        self._pipe, theirs = multiprocessing.Pipe(duplex=False)
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(work, theirs, self._pipe), daemon=True
        )
        self._process.start()
        theirs.close()

    def __enter__(self) -> Apart[Result]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def result(self, tell: Callable[[], None] = lambda: None) -> Result:
        """What `work` gives; `tell` is called now and then until it comes.

        Raises what `work` raised where that is Refused, RuntimeError with its traceback for anything else, and Refused
        where its process was killed, naming the signal.
        """
        while not self._pipe.poll(POLL_SECONDS):
            tell()
        try:
            result, error = self._pipe.recv()
        except EOFError:
            raise self._death() from None
        if isinstance(error, Refused):
            raise error
        if error is not None:
            raise RuntimeError(error)
        found: Result = result
        return found

    def _death(self) -> Refused:
        self._process.join()
        code = self._process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        remedy = "most often memory ran out: take a smaller sample (--sample-mib), or free memory"
        return refuse(f"training (process {self._process.pid})", how, remedy)


def _serve(work: Callable[[], Result], pipe: Connection, other_end: Connection) -> None:
    end_with_parent(signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who waits
    other_end.close()
    result: Result | None = None
    error: Refused | str | None = None
    try:
        result = work()
    except Refused as refused:
        error = refused
    except Exception:
        error = f"failed in a process of its own:\n{traceback.format_exc()}"
    pipe.send((result, error))
