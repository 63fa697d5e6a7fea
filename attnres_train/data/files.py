"""Files that appear whole or not at all: written aside, flushed to disk, published by rename."""

from __future__ import annotations

import filecmp
import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from attnres_train.durable import flush_folder
from attnres_train.errors import refuse
from attnres_train.locks import NoLocks, lock

log = logging.getLogger(__name__)
COPY_BYTES = 8 << 20
Existing = Literal["refuse", "replace", "compare"]


def sha256_of_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def blocks_of(path: Path) -> Iterator[bytes]:
    """A file's bytes, some at a time."""
    with open(path, "rb") as file:
        while block := file.read(COPY_BYTES):
            yield block


class Publication:
    """Several files published together; to be used in a `with` block.

    Each is written to a sibling `NAME.partial`; `commit` renames them in the order of `paths`, so the last
    one says that all are there. Leaving the block without `commit` removes what was written. A kill leaves
    only `.partial` files, which the next publication of the same names takes over.

    `existing` says what to do about files of these names: `refuse` before anything is written; `replace`
    them at the commit; or `compare`: accept if all are there with the very bytes just written, else refuse.

    Raises Refused for existing files as said, and where another process writes the same files.
    """

    def __init__(self, paths: Sequence[Path], existing: Existing = "refuse"):
        self.paths = tuple(paths)
        self.existing = existing
        self._files: dict[Path, BinaryIO] = {}
        # A kill between two renames leaves the last file written aside, and those before it in place.
        was_killed = partial_path(self.paths[-1]).exists() and not self.paths[-1].exists()
        if existing == "refuse" and not was_killed:
            self._refuse_existing()

    def __enter__(self) -> Publication:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def open(self, path: Path) -> BinaryIO:
        """A new empty file that `commit` publishes as `path`, one of `paths`."""
        if path not in self.paths or path in self._files:
            raise ValueError(f"{path} is not among the files to publish, or is open already")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file, unguarded = _open_exclusively(partial_path(path))
        except FileNotFoundError:  # of folders such as /proc
            raise refuse(str(path), f"no file can be made in {path.parent}", "name another folder") from None
        if unguarded is not None and not self._files:
            log.warning(f"{path}: {unguarded.strerror}; see that no other process writes this output")
        self._files[path] = file
        return self._files[path]

    def commit(self) -> bool:
        """Publish; returns False where `compare` found the same files in place already."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        if self.existing == "compare" and any(path.exists() for path in self.paths):
            if not all(path.exists() and filecmp.cmp(path, partial_path(path), shallow=False) for path in self.paths):
                self._refuse_existing()
            self.discard()
            return False
        # The last file vouches for the others, so an old one goes before anything beside it changes.
        for path in reversed(self.paths):
            if self.existing == "replace":
                path.unlink(missing_ok=True)
        for path in self.paths:
            if path in self._files:
                os.rename(partial_path(path), path)
                self._files.pop(path).close()
        for folder in {path.parent for path in self.paths}:
            flush_folder(folder)
        return True

    def discard(self) -> None:
        """Remove what was written and not published."""
        for path in list(self._files):
            partial_path(path).unlink(missing_ok=True)
            self._files.pop(path).close()

    def _refuse_existing(self) -> None:
        found = [str(path) for path in self.paths if path.exists()]
        if found:
            remedy = "pass --overwrite to replace what is there, or name another output"
            raise refuse(", ".join(found), "already there, with other content or of unknown origin", remedy)


def partial_path(path: Path) -> Path:
    """Where `path` is written before it is published."""
    return path.with_name(path.name + ".partial")


def _open_exclusively(path: Path) -> tuple[BinaryIO, NoLocks | None]:
    """`path` open and empty, and why nothing keeps another writer out, where that is so."""
    # Not mode "w": truncating before the lock is held would empty another writer's file.
    file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    unguarded = None
    try:
        # Between open and lock the other writer may have published: then this is the finished file.
        ours = lock(file) and path.exists() and os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except NoLocks as reason:
        ours, unguarded = True, reason
    if not ours:
        file.close()
        raise refuse(str(path), "another process is writing this output", "wait for it, or name another output")
    file.truncate(0)
    return file, unguarded
