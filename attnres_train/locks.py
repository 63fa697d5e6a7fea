"""Locks of files, which end with the process that holds them."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO, Any


class NoLocks(OSError):
    """The file system keeps no locks: Lustre mounted without `flock`, NFS without its lock daemon, some of FUSE."""


def lock(file: IO[Any], *, shared: bool = False) -> bool:
    """Lock `file` for as long as it is open, without waiting; False where another process holds it.

    Raises NoLocks where nobody can hold it.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise NoLocks(error.errno, f"its file system keeps no locks ({error.strerror})", str(file.name)) from error
    return True


def is_locked(path: Path) -> bool:
    """Whether a process holds the file at `path`.

    Raises OSError where it cannot be opened, NoLocks where nobody could hold it.
    """
    with open(path, encoding="utf-8") as file:
        return not lock(file, shared=True)
