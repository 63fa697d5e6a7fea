"""One run a folder: a lock that ends with the process that holds it, and in its file who that is."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from attnres_train.errors import Refused, refuse
from attnres_train.launch.process import is_gone, parent_mark
from attnres_train.locks import NoLocks, is_locked, lock
from attnres_train.observe.console import CONSOLE

log = logging.getLogger(CONSOLE)
LOCK = ".lock"
SECONDS_TO_END = 3.0
"""How long a launch waits for the run before it, which may be about to end."""
_GLANCE_SECONDS = 1.0
"""Longer than others hold the lock to see whether a run does."""


def is_claimed(folder: Path) -> bool:
    """Whether a run is writing to `folder`. Where the file system keeps no locks, one of this machine is known."""
    path = folder / LOCK
    try:
        return is_locked(path)
    except NoLocks:
        return _lives_here(_holder(path))
    except OSError:  # nobody ever ran there, or nobody can; whoever claims it says so
        return False


def refuse_in_use(folder: Path, patience_seconds: float = 0.0) -> None:
    """Raises Refused, with host, process and time, where a run is writing to `folder`; nothing is touched."""
    if not _comes_true(lambda: not is_claimed(folder), patience_seconds):
        raise _in_use(folder)


def claim_run_folder(folder: Path) -> IO[bytes]:
    """Lock `folder` for as long as the returned file is open; the kernel lets go when the process ends.

    Two runs in one folder would rewrite each other's curves and delete each other's saves. Where the file system keeps
    no locks, a warning says so, and only a run of the same machine is kept out.

    Raises Refused where another process holds it, or where the lock's file cannot be written.
    """
    path = folder / LOCK
    try:
        # Not mode "w": the name of the one who holds it must stay.
        file = open(path, "a+b", buffering=0)  # noqa: SIM115 - held open on purpose
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}"
        raise refuse("training.run_folder", message, "give this user the right to write, or choose another") from error
    try:
        free = _comes_true(lambda: lock(file), _GLANCE_SECONDS)
    except NoLocks as reason:
        free = not _lives_here(_holder(path))
        log.warning(f"{path}: {reason.strerror}; nothing keeps a run of another machine out of this folder")
    if not free:
        file.close()
        raise _in_use(folder)
    _sign(file)
    return file


class Claim:
    """A claim that is looked after: a run folder may be moved or deleted while its run goes on writing to its path.

    Raises Refused as `claim_run_folder`.
    """

    def __init__(self, folder: Path):
        self._folder, self._file = folder, claim_run_folder(folder)

    def renew(self) -> bool:
        """Whether the file at the lock's path was another one or none, and is claimed anew; a warning says so.

        Raises RuntimeError where another run holds the folder by now, or where it cannot be claimed.
        """
        path = self._folder / LOCK
        try:
            there: os.stat_result | None = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            there = None
        except OSError:  # of a disk that does not answer: it says nothing of whose the folder is
            return False
        if there is not None and os.path.samestat(there, os.fstat(self._file.fileno())):
            return False
        self._file.close()
        what = f"{self._folder} was moved, deleted or replaced while this run wrote to it"
        try:
            with suppress(OSError):  # claiming says more
                self._folder.mkdir(parents=True, exist_ok=True)
            self._file = claim_run_folder(self._folder)
        except Refused as refusal:
            raise RuntimeError(f"{what}, and {refusal.problems[0].message}; so this run ends without a save") from None
        log.warning(f"{what}; it is claimed anew, and what this run records and saves from here on is written there")
        return True


def _sign(file: IO[bytes]) -> None:
    with suppress(OSError):  # of a full disk: the lock holds, only a refusal will not know whom to name
        file.truncate(0)
        now = time.strftime("%Y-%m-%d %H:%M:%S %z")
        mine = {"host": socket.gethostname(), "pid": os.getpid(), "since": now, "mark": parent_mark(os.getpid())}
        file.write(json.dumps(mine).encode() + b"\n")


def _holder(path: Path) -> dict[str, Any]:
    """What the last one to hold the lock says of itself; nothing where it is of another version."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _lives_here(holder: dict[str, Any]) -> bool:
    """Whether it is a process of this machine that has not ended, other than this one."""
    pid, mark = holder.get("pid"), holder.get("mark")
    return isinstance(pid, int) and pid != os.getpid() and parent_mark(pid) == mark and not is_gone(mark)


def _in_use(folder: Path) -> Refused:
    holder = _holder(folder / LOCK)
    who = f": process {holder['pid']} on {holder['host']}, since {holder['since']}" if "since" in holder else ""
    what = f"another run is writing to {folder}{who}"
    return refuse("training.run_folder", what, "wait until it has ended, or choose another folder")


def _comes_true(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True
