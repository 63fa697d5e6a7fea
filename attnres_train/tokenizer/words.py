"""Encoding word by word with a memory: the ids of the whole text, many times faster.

Text is cut where that changes no ids (`cuts.py`). Words repeat: each is encoded once, and then its ids are
copied. All of it is done for a slice of text at a time, in compiled loops of pyarrow and numpy; only the
distinct words of a slice are ever Python objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnres_train.tokenizer.protocol import Encoded

Item = TypeVar("Item")
SPACE_PIECE = "\u2581"
"""How sentencepiece writes a space inside a piece."""
LONGEST_WORD = 1 << 20
"""Bytes. A longer word is cut after every so many, between two characters: libraries need 40 to 120 bytes
of memory for each of its bytes."""
SLICE_BYTES = 2 << 20
"""Text worked on at once: in larger slices words repeat more often, smaller ones fit the processor's cache."""
REMEMBERED_BYTES = 100_000_000
"""Memory for words; when it is full, all are forgotten."""
BYTES_A_WORD = 200
"""What remembering a word takes besides its own bytes and ids."""

WordStarts = Callable[[bytes], NDArray[np.int32]]
"""Where words begin in UTF-8 that is not empty; the first place is 0."""
EncodeWords = Callable[[list[bytes]], Sequence[Sequence[int]]]
"""The ids that each word has wherever it stands."""


class Part(NamedTuple):
    """A document, or a part of a long one that begins and ends where words do.

    `breaks_word` says that it ends within a word that it begins with, and is the first part to do so.
    """

    document: int
    text: bytes
    breaks_word: bool


class WordEncoder:
    """Documents in UTF-8 to ids, by way of words that are remembered."""

    def __init__(self, word_starts: WordStarts, encode_words: EncodeWords):
        # Loaded here for `_distinct`: once, if processes are forked later, and never where nothing is encoded.
        import pyarrow  # noqa: F401

        self._word_starts = word_starts
        self._memory = WordMemory(encode_words)

    def __call__(self, documents: Sequence[bytes]) -> Encoded:
        ids = [np.zeros(0, np.int32)]
        lengths = np.zeros(len(documents), np.int64)
        cut_words = 0
        for parts in groups(self._parts(documents), lambda part: len(part.text), SLICE_BYTES):
            slice_ids, part_lengths = self._encode_slice([part.text for part in parts])
            ids.append(slice_ids)
            np.add.at(lengths, [part.document for part in parts], part_lengths)
            cut_words += sum(part.breaks_word for part in parts)
        return Encoded(np.concatenate(ids), lengths, cut_words)

    def _parts(self, documents: Iterable[bytes]) -> Iterator[Part]:
        for number, text in enumerate(documents):
            start, in_word = 0, False
            while len(text) - start > LONGEST_WORD:
                end = _character_start(text, start + LONGEST_WORD)
                # Whether a word begins at the end shows in the character that follows, of at most 4 bytes.
                starts = start + self._word_starts(text[start : _character_start(text, end + 4)])
                last = int(starts[starts <= end][-1])
                breaks_word = last == start
                end = end if breaks_word else last
                yield Part(number, text[start:end], breaks_word and not in_word)
                start, in_word = end, breaks_word
            if start < len(text):
                yield Part(number, text[start:], False)

    def _encode_slice(self, texts: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids of all `texts`, none of them empty, and the number of ids of each."""
        text = b"".join(texts)
        text_ends = np.cumsum([len(text) for text in texts])
        starts = _with(self._word_starts(text), text_ends[:-1])
        words, word_numbers = _distinct(text, starts)
        rows = self._memory.rows(words)[word_numbers]
        ids, id_ends = self._memory.ids(rows)
        last_words = np.searchsorted(starts, text_ends) - 1
        return ids, np.diff(id_ends[last_words], prepend=0)


class WordMemory:
    """The ids of words: one row a word, its ids somewhere in one long array."""

    def __init__(self, encode_words: EncodeWords):
        self._encode_words = encode_words
        self._rows: dict[bytes, int] = {}
        self._ids = np.zeros(1 << 16, np.int32)
        self._starts = np.zeros(1 << 12, np.int64)
        self._lengths = np.zeros(1 << 12, np.int64)
        self._used_ids = self._used_bytes = 0

    def rows(self, words: list[bytes]) -> NDArray[np.int64]:
        """The row of each of `words`, which are distinct; new ones are encoded. Older rows may become void."""
        if self._used_bytes > REMEMBERED_BYTES:
            self._rows.clear()
            self._used_ids = self._used_bytes = 0
        rows = np.fromiter(map(self._rows.get, words, repeat(-1)), np.int64, len(words))
        new = np.flatnonzero(rows < 0)
        if len(new):
            rows[new] = self._add([words[index] for index in new])
        return rows

    def ids(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids of `rows` one after the other, and where those of each end."""
        lengths = self._lengths[rows]
        ends = np.cumsum(lengths)
        # Each id is copied from as far behind its row's start as it lies behind the start of the row's copy.
        sources = np.repeat(self._starts[rows] - (ends - lengths), lengths)
        sources += np.arange(len(sources))
        return self._ids[sources], ends

    def _add(self, words: list[bytes]) -> NDArray[np.int64]:
        each = self._encode_words(words)
        lengths = np.fromiter(map(len, each), np.int64, len(each))
        ends = self._used_ids + np.cumsum(lengths)
        rows = np.arange(len(self._rows), len(self._rows) + len(words))
        self._rows.update(zip(words, rows.tolist(), strict=True))
        self._lengths = _grown(self._lengths, len(self._rows))
        self._starts = _grown(self._starts, len(self._rows))
        self._ids = _grown(self._ids, int(ends[-1]))
        self._lengths[rows] = lengths
        self._starts[rows] = ends - lengths
        self._ids[self._used_ids : ends[-1]] = np.fromiter(chain.from_iterable(each), np.int32, int(lengths.sum()))
        self._used_ids = int(ends[-1])
        self._used_bytes += BYTES_A_WORD * len(words) + sum(map(len, words)) + 4 * int(lengths.sum())
        return rows


def groups(items: Iterable[Item], size_of: Callable[[Item], int], least: int) -> Iterator[list[Item]]:
    """`items` in groups, each of at least the size `least` but the last."""
    group: list[Item] = []
    size = 0
    for item in items:
        group.append(item)
        size += size_of(item)
        if size >= least:
            yield group
            group, size = [], 0
    if group:
        yield group


def _character_start(text: bytes, place: int) -> int:
    """The last place up to `place` where a character begins, or the end of `text`."""
    place = min(place, len(text))
    while place < len(text) and text[place] & 0xC0 == 0x80:
        place -= 1
    return place


def _with(starts: NDArray[np.int32], places: NDArray[np.int64]) -> NDArray[np.int32]:
    """`starts`, with those of `places` that they lack; both are sorted."""
    positions = np.searchsorted(starts, places)
    lacking = np.append(starts, -1)[positions] != places
    return np.insert(starts, positions[lacking], places[lacking])


def _distinct(text: bytes, starts: NDArray[np.int32]) -> tuple[list[bytes], NDArray[np.int32]]:
    """The different words of `text`, and for each of its words the number of that one."""
    import pyarrow

    offsets = np.append(starts, np.int32(len(text)))
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(text)]
    words = pyarrow.BinaryArray.from_buffers(pyarrow.binary(), len(starts), buffers).dictionary_encode()
    return words.dictionary.to_pylist(), words.indices.to_numpy()


Entry = TypeVar("Entry", bound=np.generic)


def _grown(array: NDArray[Entry], size: int) -> NDArray[Entry]:
    """`array`, or a copy of at least twice its length, to hold `size` entries."""
    return array if size <= len(array) else np.resize(array, max(size, 2 * len(array)))
