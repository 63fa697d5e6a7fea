"""Where text can be cut so that its parts have the ids of the whole.

Byte-pair encoding only joins neighbours into pieces of the vocabulary. Where two characters stand side by side
in no piece, nothing is ever joined across them, and the text can be cut there. In most vocabularies that is
before a space that follows another character, around line breaks, and where letters, digits and punctuation
meet. (Unigram models are left out: they choose the best sum of scores over the whole text, and rounding decides
ties differently in parts.)
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

KEY_BITS = 22
"""Pairs of characters are told apart by keys of so many bits. Two pairs with one key only cost cuts: where one
of them is in a piece, neither is cut."""
BYTES_A_CHARACTER = 1.25
"""In text with more, whole characters are looked at; with less, bytes are enough, and quicker."""


class Cuts:
    """The cuts that a vocabulary allows; `pieces` have spaces as spaces."""

    def __init__(self, pieces: Iterable[str]):
        # The separators are no text: FF is no byte of UTF-8, and FFFF is no character.
        joined = "\uffff".join(pieces)
        data = np.frombuffer(b"\xff".join(piece.encode() for piece in joined.split("\uffff")), np.uint8)
        can_cut = np.ones((256, 256), np.bool_)
        can_cut[data[:-1], data[1:]] = False
        can_cut[:, 0x80:0xC0] = False  # within a character
        self._bytes = can_cut
        self._characters = np.ones(1 << KEY_BITS, np.bool_)
        self._characters[_keys(_code_points(joined))] = False

    def word_starts(self, data: bytes) -> NDArray[np.int32]:
        """Places in `data`, UTF-8 that is not empty, where words begin; the first is 0."""
        if not data.isascii():
            text = data.decode()
            if len(data) > BYTES_A_CHARACTER * len(text):
                return self._starts_by_characters(text)
        return starts_by_bytes(self._bytes, data)

    def _starts_by_characters(self, text: str) -> NDArray[np.int32]:
        points = _code_points(text)
        starts = _places(self._characters[_keys(points)])
        sizes = np.ones(len(points), np.uint8)
        for first_of_next_size in (0x80, 0x800, 0x10000):
            sizes += points >= first_of_next_size
        ends = np.cumsum(sizes, dtype=np.int32)
        return ends[starts] - sizes[starts]


def starts_by_bytes(can_cut: NDArray[np.bool_], data: bytes) -> NDArray[np.int32]:
    """As `Cuts.word_starts`; `can_cut` holds for each two bytes whether the second begins a word."""
    values = np.frombuffer(data, np.uint8)
    pairs = values[:-1].astype(np.uint16) << 8 | values[1:]
    return _places(np.take(can_cut.reshape(-1), pairs, mode="clip"))


def _places(can_cut: NDArray[np.bool_]) -> NDArray[np.int32]:
    """0, and each place whose entry in `can_cut` (of place 1, 2 ...) is true."""
    places = np.flatnonzero(can_cut).astype(np.int32)
    places += 1
    return np.concatenate((np.zeros(1, np.int32), places))


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), np.dtype("<u4"))


def _keys(points: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A key for each two neighbours."""
    mixed = points[:-1] * np.uint32(0x9E3779B1) ^ points[1:] * np.uint32(0x85EBCA6B)
    return mixed >> np.uint32(32 - KEY_BITS)
