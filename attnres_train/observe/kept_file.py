"""A file of records that stays open while anybody may delete it, rotate it or put another in its place."""

from __future__ import annotations

import os
from errno import ESTALE
from pathlib import Path


class Gone(OSError):
    """What is written would be lost, for it is no longer the file at its path; the words say what happened."""


class KeptFile:
    """Appends to the file at `path`; with `new` to one that nobody has begun.

    Raises OSError where that cannot be done.
    """

    def __init__(self, path: Path, *, new: bool = False):
        path.parent.mkdir(parents=True, exist_ok=True)
        exclusively = os.O_EXCL if new else 0
        # Appending also where somebody cuts the file short: a hole of zeros would damage all that follows.
        self._file = open(path, "ab", 0, opener=lambda name, flags: os.open(name, flags | exclusively, 0o666))  # noqa: SIM115
        self._path, self._bytes = path, os.fstat(self._file.fileno()).st_size

    def write(self, data: bytes) -> None:
        """All of `data`, which one call need not write. Raises Gone, OSError."""
        self._check()
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) or 0 :]
        self._bytes = os.fstat(self._file.fileno()).st_size

    def ends_a_line(self) -> bool:
        """Whether a line begins with what is written next."""
        with open(self._path, "rb") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
            return file.read(1) in (b"", b"\n")

    def close(self) -> None:
        """Raises Gone, once, where the file was lost."""
        if self._file.closed:
            return
        try:
            self._check()
        finally:
            self._file.close()

    def _check(self) -> None:
        own = os.fstat(self._file.fileno())
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            raise Gone(ESTALE, f"{self._path} is not there any more") from None
        same = (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)
        # Some network file systems give a file another number now and then, but not another size and time.
        if not same and (there.st_size, there.st_mtime_ns) != (own.st_size, own.st_mtime_ns):
            raise Gone(ESTALE, f"{self._path} is another file now")
        if own.st_size < self._bytes:
            raise Gone(ESTALE, f"{self._path} was cut short")
