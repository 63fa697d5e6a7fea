"""The order of samples: a pure function of (seed, epoch, index), in constant memory.

Each epoch is a keyed permutation of the samples, computed for any index alone. A number below 2^bits is cut
into two halves, and each half in turn is xor-ed with a hash of the other and a round key (a Feistel network):
whatever the hash, that maps distinct numbers to distinct numbers. Results outside the range are mapped again
until they fall inside (cycle walking), on average less than once, because 2^bits is below twice the size.

All arithmetic is on 64-bit integers, so the order is the same on every platform.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

ROUNDS = 6
MASK_64 = (1 << 64) - 1
GOLDEN_64 = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio; its multiples are spread evenly."""

Words = npt.NDArray[np.uint64]
IntOrWords = TypeVar("IntOrWords", int, Words)


def mix(word: IntOrWords) -> IntOrWords:
    """A bijective hash of 64-bit words (the finalizer of SplitMix64), for one int or an array."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK_64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK_64
    return word ^ (word >> 31)


def derive_key(key: int, number: int) -> int:
    """The 64-bit key that belongs to `number` under `key`; both may be any integer from 0 on."""
    return mix(mix((key + GOLDEN_64) & MASK_64) + (number + 1) * GOLDEN_64 & MASK_64)


def permute(indices: npt.NDArray[np.integer], size: int, key: int) -> npt.NDArray[np.int64]:
    """Where the permutation of [0, size) under `key` sends each of `indices`.

    Raises ValueError for indices outside [0, size).
    """
    words = np.asarray(indices).astype(np.uint64)
    if words.size and int(words.max()) >= size:
        raise ValueError(f"index {int(words.max())} of a permutation of {size}")
    bits = max(1, (size - 1).bit_length())
    words = _feistel(words, bits, key)
    outside = np.flatnonzero(words >= size)
    while outside.size:
        words[outside] = _feistel(words[outside], bits, key)
        outside = outside[words[outside] >= size]
    return words.astype(np.int64)


def _feistel(words: Words, bits: int, key: int) -> Words:
    right_bits = (bits + 1) // 2
    right_mask, left_mask = (1 << right_bits) - 1, (1 << (bits - right_bits)) - 1
    right, left = words & right_mask, words >> right_bits
    for turn in range(0, 2 * ROUNDS, 2):
        left = left ^ (mix(right + np.uint64(derive_key(key, turn))) & left_mask)
        right = right ^ (mix(left + np.uint64(derive_key(key, turn + 1))) & right_mask)
    return left << right_bits | right


@dataclass(frozen=True)
class SampleOrder:
    """The endless order of `num_samples` samples: epoch after epoch, each shuffled by its own key.

    Position p is in epoch p // num_samples; the epoch's permutation sends p % num_samples to the sample.
    """

    num_samples: int
    seed: int

    def __post_init__(self) -> None:
        if self.num_samples < 1 or self.seed < 0:
            raise ValueError(f"an order of {self.num_samples} samples with seed {self.seed}")

    def locate(
        self, positions: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The epoch and the sample index at each position (0-based)."""
        epochs, indices = np.divmod(np.asarray(positions, dtype=np.int64), self.num_samples)
        if epochs.size and int(epochs.min()) < 0:
            raise ValueError("positions count from 0")
        samples = np.empty_like(indices)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            samples[here] = permute(indices[here], self.num_samples, derive_key(self.seed, epoch))
        return epochs, samples
