"""The writer of a `.bin/.idx` pair; indexed.py describes the format. One sequence a document."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from attnres_train.data.files import Existing, Publication, partial_path, sha256_of_file
from attnres_train.data.indexed import (
    BLOCK,
    HEADER,
    LENGTH_TYPE,
    MAGIC,
    OFFSET_TYPE,
    TOKEN_TYPES,
    VERSION,
    Tokens,
    token_type,
)
from attnres_train.data.paths import bin_path, idx_path, sidecar_path
from attnres_train.errors import refuse


@dataclass(frozen=True)
class PairFacts:
    """What a finished pair holds; `largest_id` is None without tokens."""

    token_type: str
    documents: int
    tokens: int
    largest_id: int | None
    bin_bytes: int
    bin_sha256: str
    idx_sha256: str


@dataclass(frozen=True)
class Packed:
    """Documents as they lie in the pair: `data` for the `.bin`, `lengths` [documents] in tokens, int32."""

    data: bytes
    lengths: npt.NDArray[np.int32]
    largest_id: int | None


class UnstorableDocument(ValueError):
    """Document `index` (from 0) of those at hand cannot be stored."""

    def __init__(self, index: int, message: str, remedy: str):
        super().__init__(f"document {index}: {message}")
        self.index = index
        self.message = message
        self.remedy = remedy


def pack_documents(tokens: Tokens, lengths: npt.NDArray[np.int64], vocabulary_size: int) -> Packed:
    """`len(lengths)` documents, whose tokens lie one after the other, as the pair stores them.

    Raises UnstorableDocument for an id outside the vocabulary and for a document that the format cannot hold.
    """
    if int(lengths.sum()) != tokens.size:
        raise ValueError(f"lengths sum to {int(lengths.sum())}, tokens are {tokens.size}")
    if lengths.size and int(lengths.max()) > np.iinfo(LENGTH_TYPE).max:
        what = f"has {int(lengths.max())} tokens, the format holds 2^31 - 1"
        raise UnstorableDocument(int(lengths.argmax()), what, "cut the document")
    if not tokens.size:
        return Packed(b"", lengths.astype(LENGTH_TYPE), None)
    lowest, highest = int(tokens.min()), int(tokens.max())
    if lowest < 0 or highest >= vocabulary_size:
        raise _outside(tokens, lengths, vocabulary_size)
    return Packed(tokens.astype(token_type(vocabulary_size)).tobytes(), lengths.astype(LENGTH_TYPE), highest)


def _outside(tokens: Tokens, lengths: npt.NDArray[np.int64], vocabulary_size: int) -> UnstorableDocument:
    place = int(np.flatnonzero((tokens < 0) | (tokens >= vocabulary_size))[0])
    document = int(np.searchsorted(lengths.cumsum(), place, side="right"))
    what = f"holds id {int(tokens[place])}, not below the vocabulary size {vocabulary_size}"
    return UnstorableDocument(document, what, "use the tokenizer whose vocabulary size was given")


class IndexedWriter:
    """Writes a pair, with its manifest, so that it appears whole or not at all; to be used in a `with` block.

    Call `add_documents`, or `add_tokens` and `add_lengths`, then `finish`, then `publish`. The `.idx` is renamed last:
    a pair that has one is complete. Memory does not grow with the number of documents. `extra` are more files of the
    publication, opened with `open_extra`.

    Raises Refused for ids outside the vocabulary, and for existing files as `existing` says.
    """

    def __init__(
        self,
        prefix: str | Path,
        vocabulary_size: int,
        existing: Existing = "refuse",
        extra: tuple[Path, ...] = (),
        dtype: np.dtype[np.integer] | None = None,
    ):
        self.prefix = prefix
        self.vocabulary_size = vocabulary_size
        self.type = token_type(vocabulary_size) if dtype is None else dtype
        self.num_documents = self.num_tokens = 0
        self.largest_id: int | None = None
        self._lists: dict[Path, BinaryIO] = {}
        paths = [bin_path(prefix), *extra, sidecar_path(prefix), idx_path(prefix)]
        self._publication = Publication(paths, existing)
        try:
            self._bin = self._publication.open(bin_path(prefix))
            self._idx = self._publication.open(idx_path(prefix))
        except BaseException:
            self._publication.discard()
            raise
        # Its place: the counts are known at the end.
        self._idx.write(bytes(HEADER.size))
        self._bin_digest = hashlib.sha256()

    def __enter__(self) -> IndexedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._publication.discard()

    def open_extra(self, path: Path) -> BinaryIO:
        """A new empty file that is published together with the pair, one of `extra`."""
        self._lists[path] = self._publication.open(path)
        return self._lists[path]

    def list_digests(self) -> dict[str, str]:
        """The SHA-256 of each extra file as it stands, by what follows the prefix in its name."""
        for file in self._lists.values():
            file.flush()
        start = len(Path(self.prefix).name)
        return {path.name[start:]: sha256_of_file(partial_path(path)) for path in self._lists}

    def add_documents(self, tokens: Tokens, lengths: npt.NDArray[np.int64]) -> None:
        """Append `len(lengths)` documents, whose tokens lie one after the other in `tokens`."""
        try:
            packed = pack_documents(tokens, lengths, self.vocabulary_size)
        except UnstorableDocument as error:
            number = self.num_documents + error.index
            raise refuse(f"{self.prefix}: document {number}", error.message, error.remedy) from None
        self.add_tokens(packed.data)
        self.add_lengths(packed.lengths, packed.largest_id)

    def add_tokens(self, data: bytes) -> None:
        """Append tokens that are in this pair's type already; their documents are told by `add_lengths`."""
        self._bin.write(data)
        self._bin_digest.update(data)
        self.num_tokens += len(data) // self.type.itemsize

    def add_lengths(self, lengths: npt.NDArray[np.integer], largest_id: int | None) -> None:
        """Append documents whose tokens are, or will be, appended; `largest_id` is the largest among these."""
        self._idx.write(lengths.astype(LENGTH_TYPE, copy=False).tobytes())
        self.num_documents += lengths.size
        if largest_id is not None:
            self.largest_id = max(self.largest_id or 0, largest_id)

    def finish(self) -> PairFacts:
        """Complete the index aside; no documents can be added after."""
        return PairFacts(
            token_type=self.type.name,
            documents=self.num_documents,
            tokens=self.num_tokens,
            largest_id=self.largest_id,
            bin_bytes=self.num_tokens * self.type.itemsize,
            bin_sha256=self._bin_digest.hexdigest(),
            idx_sha256=self._finish_index(),
        )

    def publish(self, sidecar: bytes | None = None) -> None:
        """Publish the pair, with `sidecar` as its manifest; without one, an old manifest goes."""
        if sidecar is not None:
            self._publication.open(sidecar_path(self.prefix)).write(sidecar)
        self._publication.commit()

    def _finish_index(self) -> str:
        """Write header, offsets and bounds around the lengths that are there; returns the SHA-256 of the file."""
        self._idx.flush()
        count = self.num_documents
        code = next(code for code, known in TOKEN_TYPES.items() if known == self.type)
        header = HEADER.pack(MAGIC, VERSION, code, count, count + 1)
        descriptor = self._idx.fileno()
        offset = 0
        for start in range(0, count, BLOCK):
            size = min(BLOCK, count - start) * LENGTH_TYPE.itemsize
            data = os.pread(descriptor, size, HEADER.size + start * LENGTH_TYPE.itemsize)
            ends = offset + np.frombuffer(data, LENGTH_TYPE).astype(OFFSET_TYPE).cumsum() * self.type.itemsize
            self._idx.write(np.concatenate(([offset], ends[:-1])).astype(OFFSET_TYPE).tobytes())
            offset = int(ends[-1])
        for start in range(0, count + 1, BLOCK):
            self._idx.write(np.arange(start, min(start + BLOCK, count + 1), dtype=OFFSET_TYPE).tobytes())
        self._idx.seek(0)
        self._idx.write(header)
        self._idx.flush()
        return sha256_of_file(partial_path(idx_path(self.prefix)))
