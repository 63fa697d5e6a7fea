"""Reader and writer of a `.bin/.idx` pair, the token file format of Megatron.

PREFIX.bin holds the tokens of all documents one after the other. PREFIX.idx, all numbers little-endian:

    bytes    what
    9        the magic "MMIDIDX\\0\\0"
    8        version, uint64: 1
    1        token type, uint8: see TOKEN_TYPES
    8        number of documents n, uint64
    8        number of document bounds, uint64: n + 1
    4 n      length of each document in tokens, int32
    8 n      where each document starts in the .bin, in bytes, int64
    8 (n+1)  document bounds, int64: 0, 1, ..., n

The format allows documents of several sequences (bounds that skip); the reader takes them, the writer makes
one sequence a document. The reader checks at open that both files are whole and belong together.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from attnres_train.data.files import Existing, Publication
from attnres_train.errors import Refused, refuse

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
LENGTH_TYPE = np.dtype("<i4")
OFFSET_TYPE = np.dtype("<i8")
BLOCK = 1 << 20
"""Entries handled at once, so that a check or a write of a long index needs little memory."""

TOKEN_TYPES: dict[int, np.dtype[np.integer]] = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
"""The format's codes of integer types; 6 and 7 are floats and no tokens."""

Tokens = npt.NDArray[np.integer]


def token_type(vocabulary_size: int) -> np.dtype[np.integer]:
    """The narrowest of uint16 and int32 that holds every id below `vocabulary_size`.

    uint16 reaches up to 65,536 pieces (id 65,535). Megatron's tools change to int32 at 65,500 already, which
    no reader depends on: the width is in the index.
    """
    return TOKEN_TYPES[8] if vocabulary_size <= 1 << 16 else TOKEN_TYPES[4]


def bin_path(prefix: str | Path) -> Path:
    """The token file of the pair `prefix`."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    """The index of the pair `prefix`."""
    return Path(f"{prefix}.idx")


def sidecar_path(prefix: str | Path) -> Path:
    """The manifest of the pair `prefix`."""
    return Path(f"{prefix}.json")


@dataclass(frozen=True)
class PairFacts:
    """What a finished pair holds."""

    token_type: str
    documents: int
    tokens: int
    largest_id: int
    bin_bytes: int
    bin_sha256: str
    idx_sha256: str


class IndexedWriter:
    """Writes a pair, with its manifest, so that it appears whole or not at all; to be used in a `with` block.

    Call `add_documents`, then `finish`, then `publish`. The `.idx` is renamed last: a pair that has one is
    complete. Memory grows by 4 bytes a document.

    Raises Refused for ids outside the vocabulary, and for existing files as `existing` says.
    """

    def __init__(self, prefix: str | Path, vocabulary_size: int, existing: Existing = "refuse"):
        self.prefix = prefix
        self.vocabulary_size = vocabulary_size
        self.type = token_type(vocabulary_size)
        self.largest_id = -1
        self.num_tokens = 0
        self._lengths = array("i")
        paths = [bin_path(prefix), sidecar_path(prefix), idx_path(prefix)]
        self._publication = Publication(paths, existing)
        self._bin = self._publication.open(bin_path(prefix))
        self._bin_digest = hashlib.sha256()

    def __enter__(self) -> IndexedWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._publication.discard()

    def add_documents(self, tokens: Tokens, lengths: npt.NDArray[np.int64]) -> None:
        """Append `len(lengths)` documents, whose tokens lie one after the other in `tokens`."""
        if int(lengths.sum()) != tokens.size:
            raise ValueError(f"lengths sum to {int(lengths.sum())}, tokens are {tokens.size}")
        if lengths.size and int(lengths.max()) > np.iinfo(LENGTH_TYPE).max:
            raise self._refuse(int(lengths.argmax()), f"has {int(lengths.max())} tokens, the format holds 2^31 - 1")
        outside = np.flatnonzero((tokens < 0) | (tokens >= self.vocabulary_size))
        if outside.size:
            document = int(np.searchsorted(lengths.cumsum(), outside[0], side="right"))
            what = f"holds id {int(tokens[outside[0]])}, not below the vocabulary size {self.vocabulary_size}"
            raise self._refuse(document, what)
        data = tokens.astype(self.type).tobytes()
        self._bin.write(data)
        self._bin_digest.update(data)
        self._lengths.extend(lengths.tolist())
        self.num_tokens += tokens.size
        if tokens.size:
            self.largest_id = max(self.largest_id, int(tokens.max()))

    def finish(self) -> PairFacts:
        """Write the index aside; no documents can be added after."""
        lengths = np.frombuffer(self._lengths, dtype=np.intc)
        return PairFacts(
            token_type=self.type.name,
            documents=lengths.size,
            tokens=self.num_tokens,
            largest_id=self.largest_id,
            bin_bytes=self.num_tokens * self.type.itemsize,
            bin_sha256=self._bin_digest.hexdigest(),
            idx_sha256=_write_index(self._publication.open(idx_path(self.prefix)), lengths, self.type),
        )

    def publish(self, sidecar: bytes | None = None) -> None:
        """Publish the pair, with `sidecar` as its manifest; without one, an old manifest goes."""
        if sidecar is not None:
            self._publication.open(sidecar_path(self.prefix)).write(sidecar)
        self._publication.commit()

    def _refuse(self, document: int, what: str) -> Refused:
        number = len(self._lengths) + document
        return refuse(f"{self.prefix}: document {number}", what, "use the tokenizer whose vocabulary size was given")


def _write_index(file: BinaryIO, lengths: npt.NDArray[np.intc], dtype: np.dtype[np.integer]) -> str:
    """Write an index of one sequence a document; returns its SHA-256."""
    digest = hashlib.sha256()

    def write(data: bytes) -> None:
        file.write(data)
        digest.update(data)

    count = lengths.size
    code = next(code for code, known in TOKEN_TYPES.items() if known == dtype)
    write(HEADER.pack(MAGIC, VERSION, code, count, count + 1))
    for start in range(0, count, BLOCK):
        write(lengths[start : start + BLOCK].astype(LENGTH_TYPE).tobytes())
    offset = 0
    for start in range(0, count, BLOCK):
        ends = offset + lengths[start : start + BLOCK].astype(OFFSET_TYPE).cumsum() * dtype.itemsize
        write(np.concatenate(([offset], ends[:-1])).astype(OFFSET_TYPE).tobytes())
        offset = int(ends[-1])
    for start in range(0, count + 1, BLOCK):
        write(np.arange(start, min(start + BLOCK, count + 1), dtype=OFFSET_TYPE).tobytes())
    return digest.hexdigest()


class IndexedReader:
    """A pair, memory mapped: once the index has been checked, nothing is read but what is asked for.

    `lengths` [sequences] are tokens, `bounds` [documents + 1] the first sequence of each document.

    Raises Refused where a file is missing, cut, or not of this format, with expected and found byte counts.
    """

    def __init__(self, prefix: str | Path):
        self.prefix = prefix
        _refuse_missing(prefix)
        self.type, num_sequences, num_bounds = _read_header(idx_path(prefix))
        start = HEADER.size
        self.lengths = _map(idx_path(prefix), LENGTH_TYPE, start, num_sequences)
        start += self.lengths.nbytes
        self._offsets = _map(idx_path(prefix), OFFSET_TYPE, start, num_sequences)
        self.bounds = _map(idx_path(prefix), OFFSET_TYPE, start + self._offsets.nbytes, num_bounds)
        self.num_tokens, in_order = _walk(idx_path(prefix), num_sequences, self.type)
        self._check(in_order)
        self._tokens = _map(bin_path(prefix), self.type, 0, self.num_tokens)

    @property
    def num_documents(self) -> int:
        return len(self.bounds) - 1

    def window(self, start: int, count: int) -> npt.NDArray[np.int64]:
        """`count` tokens from `start` on, the documents taken as one stream; a copy."""
        if not 0 <= start <= start + count <= self.num_tokens:
            raise IndexError(f"tokens {start} to {start + count} of {self.num_tokens}")
        return self._tokens[start : start + count].astype(np.int64)

    def document(self, index: int) -> npt.NDArray[np.int64]:
        """The tokens of one document; a copy."""
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {index} of {self.num_documents}")
        first, last = int(self.bounds[index]), int(self.bounds[index + 1])
        if first == last:
            return np.empty(0, np.int64)
        count = int(self.lengths[first:last].sum(dtype=np.int64))
        return self.window(int(self._offsets[first]) // self.type.itemsize, count)

    def _check(self, in_order: bool) -> None:
        expected, found = self.num_tokens * self.type.itemsize, bin_path(self.prefix).stat().st_size
        if expected != found:
            raise _damaged(
                bin_path(self.prefix),
                f"expected {expected} bytes ({self.num_tokens} tokens of {self.type.name}, says the index), "
                f"found {found}",
            )
        if not in_order:
            raise _damaged(idx_path(self.prefix), "the documents' offsets do not follow from their lengths")
        if len(self.bounds) < 2 or int(self.bounds[0]) != 0 or int(self.bounds[-1]) != len(self.lengths):
            raise _damaged(idx_path(self.prefix), "the document bounds do not cover the sequences")


def _refuse_missing(prefix: str | Path) -> None:
    paths = [bin_path(prefix), idx_path(prefix)]
    missing = [str(path) for path in paths if not path.is_file()]
    if len(missing) == 2:
        remedy = "make it with `python -m data_tools.preprocess`, or correct the path"
        if str(prefix).endswith((".bin", ".idx")):
            remedy = "give the prefix without the ending .bin or .idx"
        raise refuse(str(prefix), f"no such pair: {' and '.join(missing)} are missing", remedy)
    if missing:
        raise _damaged(Path(missing[0]), "is missing, though the other half of the pair is there")


def _read_header(path: Path) -> tuple[np.dtype[np.integer], int, int]:
    with open(path, "rb") as file:
        header = file.read(HEADER.size)
    if len(header) < HEADER.size or not header.startswith(MAGIC):
        raise _damaged(path, f"does not begin with the {HEADER.size} byte header of a token index")
    _, version, code, num_sequences, num_bounds = HEADER.unpack(header)
    if version != VERSION or code not in TOKEN_TYPES:
        known = f"version {VERSION} and token types {sorted(TOKEN_TYPES)}"
        raise _damaged(path, f"has version {version} and token type {code}; known are {known}")
    dtype = TOKEN_TYPES[code]
    lists = num_sequences * (LENGTH_TYPE.itemsize + OFFSET_TYPE.itemsize) + num_bounds * OFFSET_TYPE.itemsize
    expected, found = HEADER.size + lists, path.stat().st_size
    if expected != found:
        counts = f"{num_sequences} sequences, {num_bounds} bounds"
        raise _damaged(path, f"expected {expected} bytes ({counts}), found {found}")
    return dtype, num_sequences, num_bounds


def _walk(path: Path, count: int, dtype: np.dtype[np.integer]) -> tuple[int, bool]:
    """Tokens of all `count` sequences, and whether each one's offset follows from the lengths before it.

    Read block by block, since whatever is looked at through a map stays in the process's memory.
    """
    end, in_order = 0, True
    with open(path, "rb") as lengths_file, open(path, "rb") as offsets_file:
        lengths_file.seek(HEADER.size)
        offsets_file.seek(HEADER.size + count * LENGTH_TYPE.itemsize)
        for start in range(0, count, BLOCK):
            size = min(BLOCK, count - start)
            ends = end + np.fromfile(lengths_file, LENGTH_TYPE, size).cumsum(dtype=np.int64) * dtype.itemsize
            offsets = np.fromfile(offsets_file, OFFSET_TYPE, size)
            in_order = in_order and int(offsets[0]) == end and np.array_equal(offsets[1:], ends[:-1])
            end = int(ends[-1])
    return end // dtype.itemsize, in_order


def _map(path: Path, dtype: np.dtype[np.integer], offset: int, count: int) -> Tokens:
    if count == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(count,))


def _damaged(path: Path, what: str) -> Refused:
    remedy = "copy the pair again, or make it again with `python -m data_tools.preprocess --overwrite`"
    return refuse(str(path), what, remedy)
