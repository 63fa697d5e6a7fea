"""Curves as arrays: read from records, smoothed, and thinned so that a page stays light and peaks stay visible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One tag: `values` after `steps` steps and `tokens` tokens, steps ascending, each once."""

    steps: Numbers
    tokens: Numbers
    values: Numbers

    @classmethod
    def of(cls, points: Sequence[tuple[float, float, float]]) -> Curve:
        """Of (step, tokens, value) in the order they were written; of a step that is there twice the last holds."""
        by_step = {point[0]: point for point in points}
        table = np.array(sorted(by_step.values()), dtype=np.float64).reshape(-1, 3)
        return cls(table[:, 0], table[:, 1], table[:, 2])

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float | None:
        """The last value, finite or not."""
        return float(self.values[-1]) if len(self) else None

    def take(self, positions: NDArray[np.int64]) -> Curve:
        return Curve(self.steps[positions], self.tokens[positions], self.values[positions])


def smoothing_window(points: int) -> int:
    """Points that a smoothed value is the mean of: a fiftieth of all, five at least, one of very few."""
    return max(points // 50, 5) if points >= 15 else 1


def smoothed(curve: Curve, window: int) -> Curve:
    """The mean of the last `window` finite values at each point, of fewer at the start; NaN where there is none."""
    finite = np.isfinite(curve.values)
    sums = np.cumsum(np.where(finite, curve.values, 0.0))
    counts = np.cumsum(finite)
    before = np.arange(len(curve)) - window
    earlier = before >= 0
    sums = sums - np.where(earlier, sums[np.maximum(before, 0)], 0.0)
    counts = counts - np.where(earlier, counts[np.maximum(before, 0)], 0)
    means = np.full(len(curve), np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return Curve(curve.steps, curve.tokens, means)


def thinned(curve: Curve, most: int) -> Curve:
    """At most `most` points: the smallest and the largest of each of equal stretches, so that no peak is lost.

    What has no more than that is returned as it is.
    """
    if len(curve) <= most:
        return curve
    stretches = np.array_split(np.arange(len(curve)), max(1, (most - 2) // 2))
    low, high = np.nan_to_num(curve.values, nan=np.inf), np.nan_to_num(curve.values, nan=-np.inf)
    kept = {0, len(curve) - 1}
    for stretch in stretches:
        kept |= {int(stretch[low[stretch].argmin()]), int(stretch[high[stretch].argmax()])}
    return curve.take(np.array(sorted(kept)))


def every_nth(curve: Curve, most: int) -> Curve:
    """At most `most` points, evenly chosen, the last among them; for what is smooth already."""
    if len(curve) <= most:
        return curve
    return curve.take(np.unique(np.linspace(0, len(curve) - 1, most).round().astype(np.int64)))


def mean_by_stretch(curve: Curve, most: int) -> Curve:
    """At most `most` points, each the mean of an equal stretch, at the stretch's end."""
    if len(curve) <= most:
        return curve
    edges = np.linspace(0, len(curve), most + 1).round().astype(np.int64)
    means = np.add.reduceat(curve.values, edges[:-1]) / np.diff(edges)
    ends = edges[1:] - 1
    return Curve(curve.steps[ends], curve.tokens[ends], means)
