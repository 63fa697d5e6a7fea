"""What the manifest says about the input files, and whether it describes the files at hand."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from attnres_train.data.files import sha256_of_file
from attnres_train.data.manifest import SourceFile
from attnres_train.errors import refuse
from data_tools.inputs import compression_of, kind_of
from data_tools.pieces import Cuttable

HASH_BYTES = 8 << 20


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


class SourceDigests:
    """Checksums of files, taken in a thread while others work; to be used in a `with` block."""

    def __init__(self, files: Sequence[Path]):
        self._files = tuple(files)
        self._statuses = {path: path.stat() for path in files}
        self._digests: dict[Path, str] = {}
        self._error: OSError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SourceDigests:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for path in self._files:
                digest = hashlib.sha256()
                with open(path, "rb") as file:
                    while (block := file.read(HASH_BYTES)) and not self._stop.is_set():
                        digest.update(block)
                self._digests[path] = digest.hexdigest()
        except OSError as error:
            self._error = error

    def describe(self, files: Sequence[Path]) -> tuple[SourceFile, ...]:
        """Waits for the checksums, and gives the sources in the order of `files`; those not taken are None.

        Raises Refused for a file that changed since this was made, and OSError where one could not be read.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        sources = []
        for path in files:
            status = path.stat()
            before = self._statuses.get(path, status)
            if (status.st_size, status.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise refuse(str(path), "changed while it was read", "run again when it is complete")
            digest = self._digests.get(path)
            source = SourceFile(path=str(path), bytes=status.st_size, modified_ns=status.st_mtime_ns, sha256=digest)
            sources.append(source)
        return tuple(sources)


def same_sources(files: Sequence[Path], sources: Sequence[SourceFile]) -> bool:
    """Whether `files` hold what `sources` describe, whatever their names: by size and time, or checksum."""
    if len(files) != len(sources):
        return False
    return all(_same_source(path, source) for path, source in zip(files, sources, strict=True))


def _same_source(path: Path, source: SourceFile) -> bool:
    status = path.stat()
    if status.st_size != source.bytes:
        return False
    if status.st_mtime_ns == source.modified_ns:
        return True
    return source.sha256 is not None and sha256_of_file(path) == source.sha256
