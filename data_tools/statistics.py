"""What a pair holds, in numbers; pure functions of a reader, in memory that hardly grows with it."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnres_train.data.indexed import BLOCK, IndexedReader
from attnres_train.errors import refuse
from data_tools.progress import Tell

LARGEST_VOCABULARY = 1 << 24
"""Beyond it counting by id would take more memory than it is worth."""

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DocumentBlock:
    """Some consecutive documents: the number of the first, the tokens of each, and all tokens in a row."""

    first: int
    lengths: Counts
    tokens: npt.NDArray[np.int64]


def document_blocks(reader: IndexedReader) -> Iterator[DocumentBlock]:
    """All documents in order, about BLOCK tokens at a time, at least one document."""
    first = first_token = 0
    for lengths in reader.document_lengths():
        while len(lengths):
            ends = lengths.cumsum()
            count = max(1, int(np.searchsorted(ends, BLOCK, side="right")))
            size = int(ends[count - 1])
            yield DocumentBlock(first, lengths[:count], reader.window(first_token, size))
            first, first_token, lengths = first + count, first_token + size, lengths[count:]


@dataclass(frozen=True)
class LengthBin:
    """How many documents have `least` to `most` tokens."""

    least: int
    most: int
    documents: int


def length_histogram(reader: IndexedReader) -> list[LengthBin]:
    """Documents by length, each bin twice as wide as the one before; from the first to the last that is not empty."""
    counts = np.zeros(65, dtype=np.int64)
    for lengths in reader.document_lengths():
        # The number of bits: 0 for 0, 1 for 1, 2 for 2 and 3, ...
        bits = np.where(lengths > 0, np.floor(np.log2(np.maximum(lengths, 1))).astype(np.int64) + 1, 0)
        counts += np.bincount(bits, minlength=65)
    used = np.flatnonzero(counts)
    if not used.size:
        return []
    edges = [(0, 0), *((1 << bit, (2 << bit) - 1) for bit in range(64))]
    return [LengthBin(*edges[bit], int(counts[bit])) for bit in range(int(used[0]), int(used[-1]) + 1)]


def histogram_lines(bins: list[LengthBin], width: int = 50) -> Iterator[str]:
    """A picture of the histogram, a line a bin."""
    most = max((one.documents for one in bins), default=1)
    for one in bins:
        # A bin that is not empty shows.
        bar = "#" * max(bool(one.documents), round(one.documents * width / most))
        yield f"{one.least:>12,} to {one.most:>12,} tokens {one.documents:>14,} {bar}".rstrip()


@dataclass(frozen=True)
class TokenStatistics:
    """What a look at every token shows.

    `unigram_entropy_nats` is the loss of the best model without context. `repeated_documents` have the very tokens
    of an earlier one.
    """

    unigram_entropy_nats: float
    pieces_used: int
    repeated_documents: int


def token_statistics(reader: IndexedReader, tell: Tell) -> TokenStatistics:
    """Reads every token once; memory grows by 8 bytes a document. `tell` is told the bytes and tokens so far."""
    counts: Counts = np.zeros(1, dtype=np.int64)
    hashes = array("Q")
    tokens = 0
    for block in document_blocks(reader):
        counts = _with_counts(counts, block.tokens, reader)
        start = 0
        for length in block.lengths.tolist():
            content = block.tokens[start : start + length].tobytes()
            hashes.append(int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()))
            start += length
        tokens += block.tokens.size
        tell(tokens * reader.type.itemsize, tokens)
    distinct = np.unique(np.frombuffer(hashes, dtype=np.uint64)).size if hashes else 0
    return TokenStatistics(entropy_nats(counts), int(np.count_nonzero(counts)), len(hashes) - distinct)


def unigram_entropy_nats(reader: IndexedReader, tell: Tell) -> float:
    """Entropy of the pair's token frequencies. `tell` is told the bytes and tokens so far."""
    counts: Counts = np.zeros(1, dtype=np.int64)
    for start in range(0, reader.num_tokens, BLOCK):
        size = min(BLOCK, reader.num_tokens - start)
        counts = _with_counts(counts, reader.window(start, size), reader)
        tell((start + size) * reader.type.itemsize, start + size)
    return entropy_nats(counts)


def _with_counts(counts: Counts, tokens: npt.NDArray[np.int64], reader: IndexedReader) -> Counts:
    """`counts` by id, with those of `tokens`. Raises Refused for ids of no vocabulary there is."""
    for wrong in (int(tokens.min(initial=0)), int(tokens.max(initial=0))):
        if not 0 <= wrong < LARGEST_VOCABULARY:
            what = f"holds id {wrong}, which is in no vocabulary"
            raise refuse(str(reader.prefix), what, "make the pair again, or look at it without --statistics")
    found = np.bincount(tokens, minlength=len(counts))
    found[: len(counts)] += counts
    return found


def entropy_nats(counts: Counts) -> float:
    """-sum p ln p of the frequencies that `counts` give; 0 for none."""
    shares = counts[counts > 0] / max(1, int(counts.sum()))
    return float(-(shares * np.log(shares)).sum())
