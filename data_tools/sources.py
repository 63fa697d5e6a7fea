"""What the manifest says about the input files, and whether it describes the files at hand."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from attnres_train.data.files import sha256_of_file
from attnres_train.data.manifest import SourceFile
from attnres_train.errors import refuse
from data_tools.inputs import compression_of, kind_of
from data_tools.pieces import Cuttable, Piece
from data_tools.pool import available_cpus
from data_tools.records import LOOK_BACK

HASH_BYTES = 1 << 20


def cuttable(path: Path) -> Cuttable:
    """`path` as the plan of the work sees it."""
    size = path.stat().st_size
    if kind_of(path) == ".jsonl" and not compression_of(path):
        return Cuttable(path, size, at_any_byte=True)
    if kind_of(path) == ".parquet":
        from data_tools.parquet import group_sizes

        groups = group_sizes(path)
        return Cuttable(path, size, groups=None if groups is None else tuple(held for _, held in groups))
    return Cuttable(path, size)


def digest_of(piece: Piece) -> str:
    """A digest of the bytes on disk that are read for `piece`: about a second a GB.

    Raises FileNotFoundError for a file that is gone; bytes that are not there count as none.
    """
    with open(piece.path, "rb") as file:
        file.seek(piece.offset)
        return _digest(file, piece)


def _digest(file: BinaryIO, piece: Piece, *others: Any) -> str:
    """Of `piece`, at whose beginning `file` stands; left at its end. The hashes `others` are told its own bytes."""
    digest = hashlib.blake2b(digest_size=16)
    left, has_break = piece.bytes, False
    while left and (block := file.read(min(HASH_BYTES, left))):
        left -= len(block)
        has_break = has_break or b"\n" in block
        for one in (digest, *others):
            one.update(block)
    if piece.start is not None and kind_of(piece.path) == ".jsonl":
        end = file.tell()
        file.seek(max(0, piece.offset - 1))
        if has_break or not piece.offset or file.read(1) == b"\n":  # else no line begins in it, and none is read
            _add_rest_of_line(file, end, digest)
            _add_line_before(file, piece.offset, digest)
        file.seek(end)
    return digest.hexdigest()


def _add_rest_of_line(file: BinaryIO, end: int, digest: Any) -> None:
    """What the last line of a piece that ends at byte `end` has beyond it."""
    file.seek(max(0, end - 1))
    while (rest := file.readline(HASH_BYTES)) and not rest.endswith(b"\n"):
        digest.update(rest)
    digest.update(rest)


def _add_line_before(file: BinaryIO, start: int, digest: Any) -> None:
    """The last line that begins before byte `start` and is not blank: whether a value goes on into the piece
    (`records`) depends on it."""
    before = b""
    while start and b"\n" not in before.rstrip():
        size = min(LOOK_BACK, start)
        start -= size
        file.seek(start)
        before = file.read(size)
        digest.update(before[before.rstrip().rfind(b"\n") + 1 :])


class SourceDigests:
    """Checksums of the files that `pieces` lie in, taken in a thread while others work; to be used in a `with` block.

    Of a file whose first piece is not among them only the pieces are read: another part of the work has begun it. Of
    one that goes on in later parts `rest` are the pieces there.
    """

    def __init__(self, pieces: Sequence[Piece], rest: Sequence[Piece] = ()):
        self._pieces: dict[Path, list[Piece]] = {}
        for piece in pieces:
            self._pieces.setdefault(piece.path, []).append(piece)
        self._rest = tuple(rest)
        self._digests: dict[Path, str] = {}
        self._of_pieces: dict[Piece, str] = {}
        self._error: OSError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SourceDigests:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for path, pieces in self._pieces.items():
                with open(path, "rb") as file:
                    self._take(path, pieces, file)
        except OSError as error:
            self._error = error

    def _take(self, path: Path, pieces: Sequence[Piece], file: BinaryIO) -> None:
        whole = hashlib.sha256()
        file.seek(pieces[0].offset)
        for piece in (*pieces, *(piece for piece in self._rest if piece.path == path)):
            if self._stop.is_set():
                return
            self._of_pieces[piece] = _digest(file, piece, whole)
        if not pieces[0].offset:
            while (block := file.read(HASH_BYTES)) and not self._stop.is_set():
                whole.update(block)
            self._digests[path] = whole.hexdigest()

    def describe(self, read: Mapping[Piece, str]) -> tuple[SourceFile, ...]:
        """Waits for the checksums, and gives the sources in order; those not taken are None.

        `read` are the digests of the pieces as they were read. Raises Refused for a file that the checksum is not of,
        because it changed meanwhile, and OSError where one could not be read.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        sources = []
        for path, pieces in self._pieces.items():
            if any(self._of_pieces[piece] != read[piece] for piece in pieces):
                raise refuse(str(path), "changed while it was read", "run again when it is complete")
            status, digest = path.stat(), self._digests.get(path)
            source = SourceFile(path=str(path), bytes=status.st_size, modified_ns=status.st_mtime_ns, sha256=digest)
            sources.append(source)
        return tuple(sources)

    def of_rest(self) -> tuple[str, ...]:
        """The digests of the pieces in later parts, once `describe` has been called."""
        return tuple(self._of_pieces[piece] for piece in self._rest)


def same_sources(files: Sequence[Path], sources: Sequence[SourceFile]) -> bool:
    """Whether `files` hold what `sources` describe, whatever their names and times: by size and checksum.

    Reads all of them, some at once. A source without a checksum, which another part of the work has, counts by size.
    """
    if len(files) != len(sources):
        return False
    if any(path.stat().st_size != source.bytes for path, source in zip(files, sources, strict=True)):
        return False
    with ThreadPoolExecutor(available_cpus()) as threads:
        return all(threads.map(_same_source, files, sources))


def _same_source(path: Path, source: SourceFile) -> bool:
    return source.sha256 is None or sha256_of_file(path) == source.sha256
