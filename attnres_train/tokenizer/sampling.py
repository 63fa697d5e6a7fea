"""A random part of a corpus that fits in memory, drawn in one pass."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator
from typing import NamedTuple

STRETCH = 1 << 16
"""Characters. Longer documents are drawn in stretches of at most so many, so that a few do not fill the sample."""


class _Drawn(NamedTuple):
    """A stretch, ordered so that the one drawn last comes first."""

    negative_key: int
    number: int
    document: int
    text: bytes


class Sample:
    """The texts of documents, uniformly random: each stretch has the same chance, whatever its length.

    Every stretch has a key that depends on `seed` and on its number in the corpus alone; those with the smallest
    keys are kept, as many as have no more than `max_bytes` together. Memory is that and some 150 bytes a stretch.
    """

    def __init__(self, max_bytes: int, seed: int):
        self._max_bytes = max_bytes
        self._seed = str(seed).encode()
        self._kept: list[_Drawn] = []
        self._below = 1 << 64
        self._documents = self._stretches = 0
        self.num_bytes = 0

    def add(self, text: str) -> None:
        """Offer the next document of the corpus."""
        for stretch in stretches_of(text, STRETCH):
            key = self._key(self._stretches)
            if key < self._below:
                drawn = _Drawn(-key, self._stretches, self._documents, stretch.encode())
                heapq.heappush(self._kept, drawn)
                self.num_bytes += len(drawn.text)
                self._drop_beyond_limit()
            self._stretches += 1
        self._documents += 1

    def num_documents(self) -> int:
        """Documents of which anything is kept."""
        return len({drawn.document for drawn in self._kept})

    def part(self, max_bytes: int) -> list[str]:
        """A random part of the sample, of at most `max_bytes`."""
        texts = []
        for drawn in sorted(self._kept, reverse=True):
            max_bytes -= len(drawn.text)
            if max_bytes < 0:
                break
            texts.append(drawn.text.decode())
        return texts

    def drop(self) -> None:
        """Let go of the sample."""
        self._kept.clear()

    def give(self) -> Iterator[str]:
        """The sample in the order of the corpus. What is given is no longer kept, so that memory holds it once."""
        self._kept.sort(key=lambda drawn: drawn.number, reverse=True)
        while self._kept:
            yield self._kept.pop().text.decode()

    def _drop_beyond_limit(self) -> None:
        while self.num_bytes > self._max_bytes:
            dropped = heapq.heappop(self._kept)
            self.num_bytes -= len(dropped.text)
            # What has a larger key may not take the place, or short stretches would be more likely than long ones.
            self._below = -dropped.negative_key

    def _key(self, number: int) -> int:
        return int.from_bytes(hashlib.blake2b(b"%d" % number, digest_size=8, key=self._seed).digest())


def stretches_of(text: str, longest: int) -> Iterator[str]:
    """`text` in stretches of at most `longest` characters, cut before line breaks or spaces where there are any.

    A cut before a space leaves the words whole.
    """
    start = 0
    while len(text) - start > longest:
        end = start + longest
        place = max(text.rfind("\n", start + 1, end + 1), text.rfind(" ", start + 1, end + 1))
        end = place if place > 0 else end
        yield text[start:end]
        start = end
    yield text[start:]
