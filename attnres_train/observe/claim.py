"""One run a folder: a lock that ends with the process that holds it."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TextIO

from attnres_train.errors import refuse
from attnres_train.launch.process import is_locked

LOCK = ".lock"


def is_claimed(folder: Path) -> bool:
    """Whether a run is writing to `folder`."""
    path = folder / LOCK
    return path.exists() and is_locked(path)


def claim_run_folder(folder: Path) -> TextIO:
    """Lock `folder` for as long as the returned file is open; the kernel lets go when the process ends.

    Two runs in one folder would rewrite each other's curves and delete each other's saves.

    Raises Refused where another process holds it.
    """
    lock = open(folder / LOCK, "w", encoding="utf-8")  # noqa: SIM115 - held open on purpose
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        what = f"another run is writing to {folder}"
        raise refuse("training.run_folder", what, "wait until it has ended, or choose another folder") from None
    return lock
