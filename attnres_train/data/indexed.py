"""The `.bin/.idx` pair, the token file format of Megatron, and its reader.

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

The format allows documents of several sequences (bounds that skip); the reader takes them. It checks at open that
both files are whole and belong together. The writer is in indexed_writer.py.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attnres_train.data.paths import bin_path, idx_path
from attnres_train.errors import Refused, refuse
from attnres_train.tokenizer.file_kinds import what_it_is

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
"""The format's codes of integer types."""
FLOAT_TYPES = (6, 7)

Tokens = npt.NDArray[np.integer]


def token_type(vocabulary_size: int) -> np.dtype[np.integer]:
    """The narrowest of uint16 and int32 that holds every id below `vocabulary_size`.

    uint16 reaches up to 65,536 pieces (id 65,535). Megatron's tools change to int32 at 65,500 already, which
    no reader depends on: the width is in the index.
    """
    return TOKEN_TYPES[8] if vocabulary_size <= 1 << 16 else TOKEN_TYPES[4]


class IndexedReader:
    """A pair: its index memory mapped and checked, its tokens read where they are asked for.

    Tokens are not mapped: every page that was looked at would stay in the process's memory, and a file that is cut
    while it is open would end the process without a word.

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
        self._tokens = open(bin_path(prefix), "rb", buffering=0)  # noqa: SIM115 - as long as the reader lives

    @property
    def num_documents(self) -> int:
        return len(self.bounds) - 1

    def window(self, start: int, count: int) -> npt.NDArray[np.int64]:
        """`count` tokens from `start` on, the documents taken as one stream; a copy."""
        if not 0 <= start <= start + count <= self.num_tokens:
            raise IndexError(f"tokens {start} to {start + count} of {self.num_tokens}")
        data = self._tokens_at(start * self.type.itemsize, count * self.type.itemsize)
        return np.frombuffer(data, self.type).astype(np.int64)

    def _tokens_at(self, offset: int, size: int) -> bytes:
        """Bytes of the .bin. Raises Refused where it has become shorter than it was."""
        data = b""
        while len(data) < size:
            # With the offset in the call, so that threads and forked processes need not take turns.
            more = os.pread(self._tokens.fileno(), size - len(data), offset + len(data))
            if not more:
                what = f"ends at byte {offset + len(data)}: it was cut after it was opened"
                raise _damaged(bin_path(self.prefix), what)
            data += more
        return data

    def document(self, index: int) -> npt.NDArray[np.int64]:
        """The tokens of one document; a copy."""
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {index} of {self.num_documents}")
        first, last = int(self.bounds[index]), int(self.bounds[index + 1])
        if first == last:
            return np.empty(0, np.int64)
        count = int(self.lengths[first:last].sum(dtype=np.int64))
        return self.window(int(self._offsets[first]) // self.type.itemsize, count)

    def document_lengths(self) -> Iterator[npt.NDArray[np.int64]]:
        """The tokens of each document, of BLOCK documents at a time."""
        for start in range(0, self.num_documents, BLOCK):
            bounds = self.bounds[start : start + BLOCK + 1].astype(np.int64)
            ends = np.concatenate(([0], self.lengths[int(bounds[0]) : int(bounds[-1])].cumsum(dtype=np.int64)))
            yield np.diff(ends[bounds - bounds[0]])

    def _check(self, in_order: bool) -> None:
        expected, found = self.num_tokens * self.type.itemsize, bin_path(self.prefix).stat().st_size
        if expected != found:
            tokens = f"{self.num_tokens} tokens of {self.type.name}, says the index"
            raise _damaged(bin_path(self.prefix), f"expected {expected} bytes ({tokens}), found {found}")
        if not in_order:
            raise _damaged(idx_path(self.prefix), "the documents' offsets do not follow from their lengths")
        if len(self.bounds) == 1 and not len(self.lengths):
            raise refuse(str(self.prefix), "holds no documents", "make it of inputs that hold some")
        if not self._bounds_grow_from_0_to(len(self.lengths)):
            raise _damaged(idx_path(self.prefix), "the document bounds do not cover the sequences")

    def _bounds_grow_from_0_to(self, end: int) -> bool:
        last, path = 0, idx_path(self.prefix)
        if self.bounds[:1].any():
            return False
        for bounds in _blocks(path, OFFSET_TYPE, path.stat().st_size - self.bounds.nbytes, len(self.bounds)):
            if int(bounds[0]) < last or np.any(np.diff(bounds) < 0):
                return False
            last = int(bounds[-1])
        return last == end


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
        begin = file.read(1 << 12)
    header = begin[: HEADER.size]
    if len(header) < HEADER.size or not header.startswith(MAGIC):
        what = f"does not begin with the {HEADER.size} byte header of a token index: it is {what_it_is(begin)}"
        raise _damaged(path, what)
    _, version, code, num_sequences, num_bounds = HEADER.unpack(header)
    if version == VERSION and code in FLOAT_TYPES:
        raise refuse(str(path), "holds floats, no tokens", "give a pair of token ids")
    if version != VERSION or code not in TOKEN_TYPES:
        known = f"version {VERSION} and token types {sorted(TOKEN_TYPES)}"
        raise _damaged(path, f"has version {version} and token type {code}; known are {known}")
    dtype = TOKEN_TYPES[code]
    lists = num_sequences * (LENGTH_TYPE.itemsize + OFFSET_TYPE.itemsize) + num_bounds * OFFSET_TYPE.itemsize
    expected, found = HEADER.size + lists, path.stat().st_size
    if found == expected + num_sequences:
        raise refuse(str(path), "is a multimodal pair, with a mode for each sequence", "give a pair of text alone")
    if expected != found:
        counts = f"{num_sequences} sequences, {num_bounds} bounds"
        raise _damaged(path, f"expected {expected} bytes ({counts}), found {found}")
    return dtype, num_sequences, num_bounds


def _walk(path: Path, count: int, dtype: np.dtype[np.integer]) -> tuple[int, bool]:
    """Tokens of all `count` sequences, and whether each one's offset follows from the lengths before it."""
    end, in_order = 0, True
    each_offsets = _blocks(path, OFFSET_TYPE, HEADER.size + count * LENGTH_TYPE.itemsize, count)
    for lengths, offsets in zip(_blocks(path, LENGTH_TYPE, HEADER.size, count), each_offsets, strict=True):
        ends = end + lengths.cumsum(dtype=np.int64) * dtype.itemsize
        in_order = in_order and int(offsets[0]) == end and np.array_equal(offsets[1:], ends[:-1])
        end = int(ends[-1])
    return end // dtype.itemsize, in_order


def _blocks(path: Path, dtype: np.dtype[np.integer], offset: int, count: int) -> Iterator[Tokens]:
    """`count` numbers from byte `offset` on, some at a time: what is looked at through a map stays in memory."""
    with open(path, "rb") as file:
        file.seek(offset)
        for start in range(0, count, BLOCK):
            yield np.fromfile(file, dtype, min(BLOCK, count - start))


def _map(path: Path, dtype: np.dtype[np.integer], offset: int, count: int) -> Tokens:
    if count == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(count,))


def _damaged(path: Path, what: str) -> Refused:
    remedy = "copy the pair again, or make it again with `python -m data_tools.preprocess --overwrite`"
    return refuse(str(path), what, remedy)
