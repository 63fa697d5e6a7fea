"""The batches of the next step, read while this one runs."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Protocol

from attnres_train.data.loader import Batch


class StepLoader(Protocol):
    """Gives the micro-batches of the step that begins at a position."""

    def step(self, consumed_samples: int) -> list[Batch]: ...


class ReadAhead:
    """A loader that has the next step read on a thread while the caller computes; to be used in a `with` block.

    What `step` returns depends on the position alone, as it does without this: another position than the next one is
    read anew. One read is under way at a time. An error of it is raised by `step` for its position.
    """

    def __init__(self, loader: StepLoader, samples_a_step: int):
        self.loader = loader
        self.samples_a_step = samples_a_step
        self._position = -1
        self._reading: Future[list[Batch]] | None = None

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # a failure must not wait for a disk that may be its cause
            self._settle()

    def step(self, consumed_samples: int) -> list[Batch]:
        """The micro-batches of the step at `consumed_samples`; the step after it is being read from now on."""
        if self._reading is None or self._position != consumed_samples:
            self._settle()
            self._begin(consumed_samples)
        reading, self._reading = self._reading, None
        assert reading is not None
        batches = reading.result()
        self._begin(consumed_samples + self.samples_a_step)
        return batches

    def _begin(self, position: int) -> None:
        self._position, self._reading = position, Future()
        # A thread a read costs 0.1 ms and leaves nothing to end; as a daemon it never holds up the end of the process.
        threading.Thread(target=self._read, args=(position, self._reading), name="read-ahead", daemon=True).start()

    def _read(self, position: int, reading: Future[list[Batch]]) -> None:
        try:
            reading.set_result(self.loader.step(position))
        except BaseException as error:  # whatever it is, it belongs to the thread that waits
            reading.set_exception(error)

    def _settle(self) -> None:
        """Wait for the read under way, if any; nobody asks for what it brings."""
        if self._reading is not None:
            self._reading.exception()
            self._reading = None
