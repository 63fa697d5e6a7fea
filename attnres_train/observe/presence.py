"""Where this rank is: its heartbeat, its stack if it stands still, and who is missing when it waits in vain.

Every rank passes the same named points (`at`): that is the name of a wait, `parallel.timeout_seconds` its limit.
A thread writes them to the rank's record, once a second or so, and to the store of the process group, where ranks of
other nodes read them without a shared folder. A rank that has not moved for a while writes the stacks of all its
threads to its log (`kill -USR2` makes it do so at once). When a wait ends without success, `missing` says which ranks
had not come to the point, and where they stand; one whose record does not change any more does not answer at all.

The main thread sets attributes and writes some bytes of mapped memory: microseconds a step.
"""

from __future__ import annotations

import faulthandler
import linecache
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

from attnres_train.launch.missing import missing_in_words
from attnres_train.launch.process import PARENT, is_gone, output_is_closed
from attnres_train.launch.record import (
    JOB,
    OUTPUT,
    End,
    Position,
    Record,
    from_json,
    read_records,
    shared_folder,
    to_json,
    write_record,
)

if TYPE_CHECKING:
    from torch.distributed import Store

BEAT_SECONDS = 1.0
MOST_PATIENCE_SECONDS = 60.0
FRAMES = 6
_WAITS = (".wait(", ".item(", ".tolist(", ".cpu(", "synchronize(")
_KEY = "attnres_train/rank/"
_MEETING = "attnres_train/meeting"


class Presence:
    """The record of this rank and the thread that keeps it."""

    def __init__(self, rank: int, world_size: int, parent_is_gone: Callable[[], None]):
        now = time.time()
        self.record = Record(rank, socket.gethostname(), os.getpid(), now, now)
        self.world_size = world_size
        self.limit_seconds = 600.0
        self._parent_is_gone = parent_is_gone
        self._folders = [Path(os.environ[JOB])] if JOB in os.environ else []
        self._positions = [Position(folder, rank) for folder in self._folders]
        self._main = threading.main_thread().ident or 0
        self._moved = time.monotonic()
        self._store: Store | None = None
        self._log: IO[str] | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Write the first record and keep writing."""
        self._write()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def enter(self, log_file: Path, limit_seconds: float) -> None:
        """From now on also in the run folder. `limit_seconds`: of every wait."""
        self.record.log, self.limit_seconds = str(log_file), limit_seconds
        folder = shared_folder(str(log_file))
        folder.mkdir(exist_ok=True)
        self._folders.append(folder)
        self._log = open(log_file, "a", encoding="utf-8")  # noqa: SIM115 - as long as the process lives
        faulthandler.enable(self._log)
        faulthandler.register(signal.SIGUSR2, self._log, chain=False)
        self._write()

    def join(self, store: Store) -> None:
        """From now on also in `store`, a connection that nobody else uses."""
        self._store = store
        if self.record.rank == 0:
            for folder in self._folders:
                for sign in folder.glob("failed-*"):  # of earlier launches
                    with suppress(OSError):  # it stays, and says nothing of this meeting
                        sign.unlink()
            store.set(_MEETING, secrets.token_hex(8))
        self.record.meeting = store.get(_MEETING).decode()
        self._write()  # who watches this rank needs the meeting even if it is stopped before its next heartbeat
        threading.Thread(target=self._post, name="heartbeat to the store", daemon=True).start()

    def at(self, what: str, step: int | None = None) -> None:
        """This rank has come to the point `what`, where all ranks come."""
        self.record.at, self.record.stuck, self.record.waits = what, None, False
        self.record.step = self.record.step if step is None else step
        self.record.moves += 1
        for position in self._positions:
            position.move(what, self.record.step)
        self._moved = time.monotonic()

    def end(self, end: End, reason: str = "") -> None:
        """The last word of this rank."""
        self.record.end, self.record.reason = end, reason
        self._write()

    def missing(self) -> str:
        """Which ranks did not come to the point where this one waited, and where they are, in words."""
        found: list[str] = []
        reader = threading.Thread(target=lambda: found.append(self._missing()), daemon=True)
        reader.start()
        reader.join(timeout=6 * BEAT_SECONDS + 4)
        waited = f"waited {self.limit_seconds:.0f} s at `{self.record.at}`"
        if found:
            return f"{waited}; {found[0]}"
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        return f"{waited}; the store at {where} does not answer: the machine of rank 0, or the link to it, is down"

    def absent_from_folder(self) -> list[int]:
        """Ranks without a fresh record in the run folder, for the time before ranks have a store."""
        if self.record.log is None:
            return []
        records, since = read_records(shared_folder(self.record.log)).values(), self.record.started - 60
        fresh = {record.rank for record in records if record.time > since}
        return [rank for rank in range(self.world_size) if rank not in fresh]

    def _missing(self) -> str:
        before = self._others()
        time.sleep(4 * BEAT_SECONDS)
        return missing_in_words(self.record, before, self._others(), range(self.world_size))

    def _others(self) -> dict[int, Record]:
        if self._store is None:
            return {}
        keys = [f"{_KEY}{rank}" for rank in range(self.world_size) if rank != self.record.rank]
        there = [key for key in keys if self._store.check([key])]
        records = (from_json(self._store.get(key).decode()) for key in there)
        return {record.rank: record for record in records}

    def _beat(self) -> None:
        held = True
        while True:
            if held and self._nobody_holds_it():
                held = False
                self._parent_is_gone()
            patience = min(MOST_PATIENCE_SECONDS, self.limit_seconds / 2)
            if self.record.stuck is None and time.monotonic() > self._moved + patience:
                self._tell_stack()
            if self.record.end is None:
                self._write()
            time.sleep(BEAT_SECONDS)

    def _nobody_holds_it(self) -> bool:
        """Whether what started this rank has ended."""
        if PARENT in os.environ and is_gone(os.environ[PARENT]):
            return True
        return OUTPUT in os.environ and output_is_closed(sys.stdout.fileno())

    def _post(self) -> None:
        while self._store is not None:
            try:
                self._store.set(f"{_KEY}{self.record.rank}", to_json(self.record))
            except Exception:  # the one that holds the store is gone; this rank learns that by its collectives
                return
            time.sleep(BEAT_SECONDS)

    def _tell_stack(self) -> None:
        frame = sys._current_frames().get(self._main)
        if frame is not None:
            frames = list(_frames(frame))
            self.record.waits = is_wait(frames[0])
            self.record.stuck = " < ".join(map(frame_in_words, frames[:FRAMES]))
        if self._log is not None:
            seconds = time.monotonic() - self._moved
            print(f"no progress for {seconds:.0f} s at `{self.record.at}`; stacks:", file=self._log, flush=True)
            faulthandler.dump_traceback(self._log, all_threads=True)

    def _write(self) -> None:
        with self._lock:
            self.record.time = time.time()
            if self.record.log is not None:  # the run folder's: somebody may have taken it away
                with suppress(OSError):
                    shared_folder(self.record.log).mkdir(exist_ok=True)
            for folder in self._folders:
                write_record(self.record, folder)


def is_wait(frame: FrameType) -> bool:
    """Whether the innermost call is one that waits for other ranks, or for a GPU, which may itself wait for others:
    NCCL's operations are queued there, and the host stands where it first needs what they bring."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return "torch/distributed/" in frame.f_code.co_filename or any(call in line for call in _WAITS)


def frame_in_words(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    return f"{path.parent.name}/{path.name}:{frame.f_lineno} {frame.f_code.co_name}"


def _frames(frame: FrameType | None) -> Iterable[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
