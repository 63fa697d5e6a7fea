"""The bytes inside a file: decompressed, line by line, in bounded memory, its damage told from its end."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from data_tools.inputs import compression_of

READ_BYTES = 1 << 20


class DamagedStream(Exception):
    """A file cannot be read any further; the message says why, `kind` in a word or two."""

    def __init__(self, message: str, kind: str = "unreadable"):
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class TooLong:
    """A line of `bytes`, more than may be held in memory, passed over."""

    bytes: int


@contextmanager
def open_stream(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The file on disk and what it holds, decompressed as its name says; the same object where it is plain.

    Raises DamagedStream, also later while it is read inside the block, where the compression is cut or wrong.
    """
    try:
        with open(path, "rb", buffering=READ_BYTES) as disk:
            yield disk, _decompressed(disk, path)
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise DamagedStream(str(error)) from error
    except Exception as error:
        # The class lives in a module that is imported only where such a file is met.
        if type(error).__name__ != "ZstdError":
            raise
        raise DamagedStream(_explained(str(error))) from error


def _explained(message: str) -> str:
    """What zstd says, and what to do about it where that is no damage."""
    if "too much memory" in message:
        return f"{message}: it was made with `zstd --long`; unpack it first with `zstd -d --long=31`"
    if "ictionary" in message:
        return f"{message}: it was made with a dictionary; unpack it first with `zstd -d -D DICTIONARY`"
    return message


def _decompressed(disk: BinaryIO, path: Path) -> BinaryIO:
    match compression_of(path):
        case ".gz":
            stream: io.RawIOBase = _OneReadAtATime(gzip.GzipFile(fileobj=disk))
        case ".zst":
            stream = _OneReadAtATime(_zstd(disk))
        case ".xz":
            stream = _Streams(disk, lzma.LZMADecompressor, padding=b"\0")
        case ".bz2":
            stream = _Streams(disk, bz2.BZ2Decompressor)
        case _:
            return disk
    # Their own line reading is Python code; this buffer's is not.
    return cast(BinaryIO, io.BufferedReader(stream, READ_BYTES))


class _OneReadAtATime(io.RawIOBase):
    """Gives what one step of decompression gives, so that a later fault takes none of it along."""

    def __init__(self, stream: Any):
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Streams(io.RawIOBase):
    """Compressed streams one after the other, with `padding` between them.

    Python's own readers of these two kinds take anything that follows a complete stream and is none for its end, so
    that what a damaged second one held would be lost without a word; here that is an error.
    """

    def __init__(self, disk: BinaryIO, make: Callable[[], Any], padding: bytes = b""):
        self._disk = disk
        self._make = make
        self._padding = padding
        self._decompressor = make()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data:
            found = b""
            if self._decompressor.eof:
                found = self._next_stream()
                if not found:
                    return 0
                self._decompressor = self._make()
            elif self._decompressor.needs_input and not (found := self._disk.read(READ_BYTES)):
                raise EOFError("ended before the end-of-stream marker")
            data = self._decompressor.decompress(found, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _next_stream(self) -> bytes:
        """The beginning of what follows a complete stream; empty at the end of the file."""
        found = self._decompressor.unused_data
        while not (found := found.lstrip(self._padding) if self._padding else found):
            if not (found := self._disk.read(READ_BYTES)):
                break
        return bytes(found)


def _zstd(disk: BinaryIO) -> BinaryIO:
    """Unlike the package `zstandard`, both of these tell a stream that was cut from one that ended."""
    if sys.version_info >= (3, 14):
        from compression.zstd import ZstdFile
    else:
        from backports.zstd import ZstdFile
    return cast(BinaryIO, ZstdFile(disk))


@contextmanager
def open_seekable(path: Path) -> Iterator[BinaryIO]:
    """A file that can be read in any order: the file itself, or what it holds, in an unnamed temporary file.

    Raises DamagedStream as `open_stream` does.
    """
    if not compression_of(path):
        with open(path, "rb") as disk:
            yield disk
        return
    with tempfile.TemporaryFile() as unpacked:
        for block in _blocks(path):
            unpacked.write(block)
        unpacked.seek(0)
        yield cast(BinaryIO, unpacked)


def _blocks(path: Path) -> Iterator[bytes]:
    with open_stream(path) as (_, stream):
        while block := stream.read(READ_BYTES):
            yield block


def read_lines(stream: BinaryIO, longest_bytes: int) -> Iterator[bytes | TooLong]:
    """The lines from where `stream` stands, with their line breaks; of one beyond `longest_bytes`, its size."""
    while line := stream.readline(longest_bytes + 1):
        if len(line) > longest_bytes and not line.endswith(b"\n"):
            yield TooLong(len(line) + skip_line(stream))
        else:
            yield line


def skip_line(stream: BinaryIO) -> int:
    """Go to the start of the next line, in bounded memory; returns the bytes passed over."""
    skipped = 0
    while rest := stream.readline(READ_BYTES):
        skipped += len(rest)
        if rest.endswith(b"\n"):
            break
    return skipped


def count_lines(path: Path, end: int) -> int:
    """How many lines begin before byte `end` of a plain file."""
    count, left, last = 0, end, b"\n"
    with open(path, "rb") as disk:
        while left and (block := disk.read(min(READ_BYTES, left))):
            count += block.count(b"\n")
            left -= len(block)
            last = block[-1:]
    return count + (last != b"\n")
