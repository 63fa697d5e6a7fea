"""Where records go: lines of JSON, each step once however often a run is resumed; and what guards all of it."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import ENOSPC
from pathlib import Path
from threading import Lock
from typing import Any

from attnres_train.observe.console import CONSOLE
from attnres_train.observe.kept_file import Gone, KeptFile
from attnres_train.observe.record_lines import parse_record
from attnres_train.strict_json import dumps
from attnres_train.words import counted

log = logging.getLogger(CONSOLE)
LEAST_FREE_BYTES = 1 << 20


class Sink:
    """Takes what is recorded, by tag; what one has no place for it passes over."""

    def write(self, step: int, values: Mapping[str, Any]) -> None: ...

    def picture(self, step: int, tag: str, png: bytes) -> None: ...

    def text(self, step: int, tag: str, words: str) -> None: ...

    def close(self) -> None: ...


class JsonlSink(Sink):
    """One JSON object a record, each written at once.

    Opening it at `step` drops the records of later steps: a resumed run writes them anew.
    """

    def __init__(self, path: Path, step: int):
        drop_records_after(path, step)
        self._path = path
        self._open()

    def _open(self) -> None:
        self._file = KeptFile(self._path)
        self._cut = not self._file.ends_a_line()

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        line = dumps({"step": step, **values}) + "\n"
        # What a full disk has cut short gets a line of its own, which readers pass over.
        data, self._cut = ("\n" * self._cut + line).encode(), True
        try:
            self._file.write(data)
        except Gone:
            self._open()
            raise
        self._cut = False

    def close(self) -> None:
        self._file.close()


class Guarded(Sink):
    """A sink whose disk may fill up or vanish: one warning, and training goes on. So it does where somebody takes away
    the file that is written: the record that would be lost begins another one.

    It is opened at once, or else with a later record: until it is open nothing can be written, so what opening drops
    of an earlier run cannot come to stand beside what replaces it. Later records are tried again, so that curves go on
    when there is space again; with `once` a sink that could not be opened is given up, for trying again may take long.
    One thread at a time gets through.
    """

    def __init__(self, open_sink: Callable[[], Sink], name: str, *, pictures: bool = True, once: bool = False):
        self._open_sink, self._name, self._pictures = open_sink, name, pictures
        self._sink: Sink | None = None
        self._told, self._told_gone, self._lost = False, False, 0
        self._turn = Lock()
        self._reaches(lambda _: None)
        self._given_up = once and self._sink is None

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self._record(lambda sink: sink.write(step, values))

    def picture(self, step: int, tag: str, png: bytes) -> None:
        if self._pictures:
            self._record(lambda sink: sink.picture(step, tag, png))

    def text(self, step: int, tag: str, words: str) -> None:
        self._record(lambda sink: sink.text(step, tag, words))

    def close(self) -> None:
        if self._sink is not None:
            self._reaches(lambda sink: sink.close())
        if self._lost:
            log.warning(f"{self._name}: {counted(self._lost, 'record')} could not be written")

    def _record(self, action: Callable[[Sink], None]) -> None:
        self._lost += self._given_up or not self._reaches(action)

    def _reaches(self, action: Callable[[Sink], None]) -> bool:
        """Whether the sink, open by now, took `action`."""
        with self._turn:
            try:
                if self._sink is None:
                    self._sink = self._open_sink()
                try:
                    action(self._sink)
                    self._told_gone = False
                except Gone as gone:
                    self._tell_gone(gone)
                    action(self._sink)
            except OSError as error:
                self._tell(error)
                return False
        return True

    def _tell_gone(self, gone: Gone) -> None:
        """Not with every record, where each of them is taken away."""
        if not self._told_gone:
            log.warning(f"{self._name}: {gone.strerror}; the records from here on are written there anew")
        self._told_gone = True

    def _tell(self, error: OSError) -> None:
        if not self._told:
            reason = error.strerror or str(error)
            log.warning(f"{self._name} cannot be written ({reason}); training goes on without its records")
        self._told = True


def guarded_lines(path: Path, step: int) -> Guarded:
    """The lines of a run that continues at `step`, guarded."""
    return Guarded(lambda: JsonlSink(path, step), path.name, pictures=False)


def refuse_full_disk(folder: Path) -> None:
    """Raises OSError where next to nothing fits onto the disk of `folder`, before anything is begun there."""
    if shutil.disk_usage(folder).free < LEAST_FREE_BYTES:
        raise OSError(ENOSPC, os.strerror(ENOSPC))


def drop_records_after(path: Path, step: int) -> None:
    """Rewrite the JSON lines of `path` without records of later steps and without a line cut by a kill.

    What cannot be rewritten stays as it is. Other lines that are no records go too, with one warning.
    """
    if not path.exists():
        return
    # It is tried again with every record: reading all of a long file each time would cost training.
    refuse_full_disk(path.parent)
    with _replacing(path) as replacement, open(path, "rb") as before, open(replacement, "wb") as after:
        damaged = 0
        for line in before:
            if record_up_to(line, step):
                after.write(line.rstrip(b"\n") + b"\n")
            elif line.endswith(b"\n"):  # a kill leaves one without an end
                damaged += parse_record(line) is None and not line.isspace()
        after.flush()
        os.fsync(after.fileno())
    if damaged:
        log.warning(f"{path}: {counted(damaged, 'damaged line')}, no record any more, dropped; the others stay")


def keep_text(path: Path, text: str) -> None:
    """Have `path` hold `text`; where it cannot be written, what it held stays, and a warning says so."""
    try:
        if path.is_file() and path.read_bytes() == text.encode():
            return
        with _replacing(path) as replacement:
            replacement.write_text(text, encoding="utf-8")
    except OSError as error:
        log.warning(f"{path} cannot be written ({error.strerror}); training goes on, and {path.name} stays as it was")


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file to write in the place of `path`, which it takes where that succeeds; else nothing of it is left."""
    replacement = path.with_suffix(".rewrite")
    try:
        yield replacement
        replacement.rename(path)
    finally:
        with suppress(OSError):
            replacement.unlink(missing_ok=True)


def record_up_to(line: bytes, last_step: int) -> dict[str, Any] | None:
    """The record in `line`, of a step up to the last; None for what a kill or a power failure left, which is none."""
    record = parse_record(line)
    return record if record is not None and record["step"] <= last_step else None
