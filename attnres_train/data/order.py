"""The order of samples: a pure function of (seed, epoch, index), in constant memory.

Each epoch is a keyed permutation of the samples, computed for any index alone. A number below 2^bits is cut
into two halves, and each half in turn is xor-ed with a hash of the other and a round key (a Feistel network):
whatever the hash, that maps distinct numbers to distinct numbers. Results outside the range are mapped again
until they fall inside (cycle walking), on average less than once, because 2^bits is below twice the size.

All arithmetic is on 64-bit integers, so the order is the same on every platform.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROUNDS = 6
GOLDEN_64 = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio; its multiples are spread evenly."""
MASK_64 = (1 << 64) - 1

Words = npt.NDArray[np.uint64]


def mix(words: Words) -> Words:
    """A bijective hash of 64-bit words, the finalizer of SplitMix64; arrays wrap around silently."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def derive_keys(key: int, numbers: Words) -> Words:
    """The 64-bit keys that belong to `numbers` under `key`."""
    base = mix(np.array([(key + GOLDEN_64) & MASK_64], dtype=np.uint64))
    return mix(base + (numbers + np.uint64(1)) * np.uint64(GOLDEN_64))


def derive_key(key: int, number: int) -> int:
    """The 64-bit key that belongs to `number` under `key`; both count from 0."""
    return int(derive_keys(key, np.array([number], dtype=np.uint64))[0])


def permute(indices: npt.NDArray[np.integer], size: int, key: int) -> npt.NDArray[np.int64]:
    """Where the permutation of [0, size) under `key` sends each of `indices`.

    Raises ValueError for indices outside [0, size).
    """
    words = indices.astype(np.uint64)
    if words.size and int(words.max()) >= size:
        raise ValueError(f"indices reach outside a permutation of {size}")
    bits = max(1, (size - 1).bit_length())
    words = _feistel(words, bits, key)
    outside = np.flatnonzero(words >= size)
    while outside.size:
        words[outside] = _feistel(words[outside], bits, key)
        outside = outside[words[outside] >= size]
    return words.astype(np.int64)


def _feistel(words: Words, bits: int, key: int) -> Words:
    """A permutation of [0, 2^bits)."""
    right_bits = np.uint64((bits + 1) // 2)
    right_mask = np.uint64((1 << (bits + 1) // 2) - 1)
    left_mask = np.uint64((1 << bits // 2) - 1)
    keys = derive_keys(key, np.arange(2 * ROUNDS, dtype=np.uint64))
    right, left = words & right_mask, words >> right_bits
    for left_key, right_key in keys.reshape(ROUNDS, 2):
        left = left ^ (mix(right + left_key) & left_mask)
        right = right ^ (mix(left + right_key) & right_mask)
    return (left << right_bits) | right


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

    def locate(self, positions: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The epoch and the sample index at each position (0-based)."""
        epochs, indices = np.divmod(np.asarray(positions, dtype=np.int64), self.num_samples)
        if epochs.size and int(epochs.min()) < 0:
            raise ValueError("positions count from 0")
        samples = np.empty_like(indices)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            samples[here] = permute(indices[here], self.num_samples, derive_key(self.seed, epoch))
        return epochs, samples
