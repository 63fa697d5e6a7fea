"""Where records go: lines of JSON, each step once however often a run is resumed; and what guards all of it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from io import RawIOBase
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from attnres_train.observe.console import CONSOLE
from attnres_train.observe.record_lines import record_of

log = logging.getLogger(CONSOLE)


class Sink(Protocol):
    def write(self, step: int, values: Mapping[str, Any]) -> None: ...

    def picture(self, step: int, tag: str, png: bytes) -> None: ...

    def close(self) -> None: ...


class JsonlSink:
    """One JSON object a record, each written at once.

    Opening it at `step` drops the records of later steps: a resumed run writes them anew.
    """

    def __init__(self, path: Path, step: int):
        drop_records_after(path, step)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - until it is closed
        self._cut = False

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        line = json.dumps({"step": step, **values}) + "\n"
        # What a full disk has cut short gets a line of its own, which readers pass over.
        data, self._cut = ("\n" * self._cut + line).encode(), True
        write_whole(self._file, data)
        self._cut = False

    def picture(self, step: int, tag: str, png: bytes) -> None:
        """Lines hold no pictures."""

    def close(self) -> None:
        self._file.close()


def write_whole(file: RawIOBase, data: bytes) -> None:
    """All of `data`, which one call need not write."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]


class Guarded:
    """A sink whose disk may fill up or vanish: one warning, and training goes on.

    Later records are tried again, so that curves go on when there is space again. One thread at a time gets through.
    """

    def __init__(self, sink: Sink, name: str):
        self._sink, self._name = sink, name
        self._lost = 0
        self._turn = Lock()

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self._try(lambda: self._sink.write(step, values))

    def picture(self, step: int, tag: str, png: bytes) -> None:
        self._try(lambda: self._sink.picture(step, tag, png))

    def close(self) -> None:
        self._try(self._sink.close)
        if self._lost:
            log.warning(f"{self._name}: {self._lost} records could not be written")

    def _try(self, action: Callable[[], None]) -> None:
        try:
            with self._turn:
                action()
        except OSError as error:
            if not self._lost:
                log.warning(f"{self._name} cannot be written ({error.strerror}); training goes on without its records")
            self._lost += 1


def drop_records_after(path: Path, step: int) -> None:
    """Rewrite the JSON lines of `path` without records of later steps and without a line cut by a kill."""
    if not path.exists():
        return
    replacement = path.with_suffix(".rewrite")
    with open(path, "rb") as before, open(replacement, "wb") as after:
        after.writelines(line.rstrip(b"\n") + b"\n" for line in before if _is_of(line, step))
        after.flush()
        os.fsync(after.fileno())
    replacement.rename(path)


def _is_of(line: bytes, last_step: int) -> bool:
    """Whether `line` is a record of a step up to the last; what a kill or a power failure left is no record."""
    record = record_of(line)
    return record is not None and record["step"] <= last_step
