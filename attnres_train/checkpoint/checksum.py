"""Checksums of files: CRC-32, which finds every burst of up to 32 bits and all but one in 4e9 of other damages.

It guards against disks and file systems, not against forgery; what is loaded cannot run code whoever wrote it. zlib's
runs at several GB/s, so that a file's checksum costs a small part of writing it.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_BLOCK_BYTES = 1 << 20


class FileRecord(NamedTuple):
    """What the manifest says of a file."""

    bytes: int
    crc32: str
    """Eight hexadecimal digits."""


def hexadecimal(crc: int) -> str:
    return f"{crc:08x}"


def record_of(path: Path) -> FileRecord:
    """Read `path` and say what it is. Raises OSError."""
    crc, size = 0, 0
    block = memoryview(bytearray(_BLOCK_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            crc, size = zlib.crc32(block[:count], crc), size + count
    return FileRecord(size, hexadecimal(crc))


class ChecksumWriter(io.RawIOBase):
    """A file open for writing from front to back, whose checksum is known as soon as it is written."""

    def __init__(self, file: io.FileIO):
        self._file, self._crc, self._size = file, 0, 0
        self._helper = ThreadPoolExecutor(1, "checksum")
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:  # type: ignore[no-untyped-def, override]
        view = memoryview(data).cast("B")
        if len(view) < _BLOCK_BYTES:
            self._write(view)
            self._crc = zlib.crc32(view, self._crc)
        else:  # both leave Python alone, so that they take the time of one where a core is free
            crc = self._helper.submit(zlib.crc32, view, self._crc)
            self._write(view)
            self._crc = crc.result()
        self._size += len(view)
        return len(view)

    def _write(self, rest: memoryview) -> None:
        try:
            while rest:  # one call writes at most 2 GiB
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.failure = error  # torch's zip writer calls this and says something else
            raise

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        """End the thread that sums; to be called while the file is open, which its opener closes.

        What nobody closes Python flushes when it is collected, and 3.13 prints that this failed.
        """
        self._helper.shutdown()
        super().close()

    @property
    def record(self) -> FileRecord:
        return FileRecord(self._size, hexadecimal(self._crc))


@contextmanager
def written(path: Path) -> Iterator[ChecksumWriter]:
    """`path` open for writing. A failure to write is raised as the OSError that it was."""
    with open(path, "wb", buffering=0) as file:
        writer = ChecksumWriter(file)
        try:
            yield writer
        except Exception:
            if writer.failure is not None:
                raise writer.failure from None
            raise
        finally:
            writer.close()
