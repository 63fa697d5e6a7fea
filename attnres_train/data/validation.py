"""Validation data: a fixed set of samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from attnres_train.data.blend import Blend
from attnres_train.data.corpus import Cut, Sample, cut_sample, digest_of, open_all


class ValidationData:
    """A fixed set of at most `num_samples` samples, never shuffled, the same for any number of ranks.

    The sources share the set by their weights; a source gives at most what it holds, spread evenly over its
    length.

    Raises Refused as `TrainingData` does.
    """

    def __init__(self, weights: Mapping[str, float], cut: Cut, num_samples: int):
        if num_samples < 1:
            raise ValueError(f"a validation set of {num_samples} samples")
        draws = Blend(weights).draws(num_samples)
        self.cut = cut
        self.corpora = open_all(weights, cut)
        self._counts = {number: min(draws[number], corpus.num_samples) for number, corpus in self.corpora.items()}
        self.shortfalls = [
            f"training.eval_samples asks {corpus.prefix} for {draws[number]:,} samples; it holds {corpus.num_samples:,}"
            for number, corpus in self.corpora.items()
            if draws[number] > corpus.num_samples
        ]

    def __len__(self) -> int:
        return sum(self._counts.values())

    @property
    def tokens_per_byte(self) -> float | None:
        """Tokens a byte of text, a mean over the samples by what their corpora have; None if one has no manifest."""
        known = 0.0
        for number, count in self._counts.items():
            manifest = self.corpora[number].manifest
            if count and (manifest is None or not manifest.text_bytes):
                return None
            known += count * (manifest.tokens / manifest.text_bytes) if count and manifest is not None else 0.0
        return known / len(self)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all that the samples depend on: equal on ranks that evaluate on the same ones."""
        parts = [f"{self.cut.sequence_length} {len(self)}"]
        return digest_of(parts + [f"{number} {corpus.fingerprint}" for number, corpus in self.corpora.items()])

    def samples(self, positions: npt.NDArray[np.integer]) -> list[Sample]:
        """The samples at `positions`, each below `len(self)`."""
        places = map(self._place, positions.tolist())
        return [cut_sample(f"{number}:e0:{index}", self.corpora[number], number, index) for number, index in places]

    def _place(self, position: int) -> tuple[int, int]:
        """Source and sample: the samples of a source are spread evenly over it."""
        for number, count in self._counts.items():
            if position < count:
                return number, position * self.corpora[number].num_samples // count
            position -= count
        raise IndexError(f"sample {position} past the end of a validation set")
