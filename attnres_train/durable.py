"""Making a rename survive a power cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def flush_file(path: Path) -> None:
    """Write to disk what somebody else has written to the file. Raises OSError."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Write the entries of `folder` to disk: a file or folder renamed into it is there after a crash.

    Where folders cannot be flushed (SMB, some of FUSE) it does nothing: they keep their entries in their own way.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)
