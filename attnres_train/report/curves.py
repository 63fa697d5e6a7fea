"""Curves as arrays: read from records, smoothed, and thinned so that a page stays light and peaks stay visible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Point = tuple[float, float, float, float]
"""Step, tokens, value, and the tokens that it is a mean over; NaN where the record does not say."""
FEWEST_SMOOTHED = 15
"""Records; a curve of fewer is shown as it is."""
_OF_THE_LONGEST, _FEWEST_RECORDS = 50, 5


@dataclass(frozen=True)
class Curve:
    """One tag: `values` after `steps` steps and `tokens` tokens, steps ascending, each once.

    A value is the mean over the last `spans` tokens; where that is NaN, over those of its step alone.
    """

    steps: Numbers
    tokens: Numbers
    values: Numbers
    spans: Numbers

    @classmethod
    def of(cls, points: Sequence[Point]) -> Curve:
        """In the order they were written: of a step that is there twice the last holds."""
        by_step = {point[0]: point for point in points}
        table = np.array(sorted(by_step.values()), dtype=np.float64).reshape(-1, 4)
        return cls(*table.T)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float | None:
        """The last value, finite or not."""
        return float(self.values[-1]) if len(self) else None

    def take(self, positions: NDArray[np.int64]) -> Curve:
        return Curve(self.steps[positions], self.tokens[positions], self.values[positions], self.spans[positions])

    def times(self, factor: float) -> Curve:
        return replace(self, values=self.values * factor)


def smoothing_span(curves: Sequence[Curve]) -> float | None:
    """Tokens that smoothed values of all `curves` go by, so that they can be compared: a fiftieth of the longest, and
    at least five records of the most sparsely logged one.

    None where no curve has enough records, or these do not tell their tokens.
    """
    tokens = [known for curve in curves if len(known := _placed(curve).tokens) >= FEWEST_SMOOTHED]
    spans = [max(one[-1] / _OF_THE_LONGEST, _FEWEST_RECORDS * float(np.median(np.diff(one)))) for one in tokens]
    return max(spans) if spans and max(spans) > 0 else None


def smoothed(curve: Curve, span: float, most: int) -> Curve:
    """At most `most` evenly chosen points, the last among them, each read off the straight line that fits the records
    within `span` tokens around it best; at the ends, those of the first and the last `span` tokens.

    So it does not lag behind a curve that falls. Records count by the tokens that they are means over, each at the
    middle of its steps. A curve shorter than five spans has its own, a fifth of it. NaN where no value is finite.
    """
    curve = _placed(curve)
    if not len(curve):
        return curve
    shown, of_a_step = every_nth(curve, most), _tokens_of_a_step(curve)
    means_over = np.where(np.isfinite(curve.spans), curve.spans, of_a_step)
    places = curve.tokens - (means_over - of_a_step) / 2
    begin, end = curve.tokens[0] - means_over[0], curve.tokens[-1]
    half = min(span, (end - begin) / 5) / 2
    order = np.argsort(places, kind="stable")
    order = order[(np.isfinite(curve.values) & (means_over > 0))[order]]
    places, values, weights = places[order], curve.values[order], means_over[order]
    heights = np.full(len(shown), np.nan)
    for number, place in enumerate(shown.tokens):
        middle = min(max(place, begin + half), end - half)
        low, high = np.searchsorted(places, middle - half, "left"), np.searchsorted(places, middle + half, "right")
        if high > low:
            heights[number] = _line_at(place, places[low:high], values[low:high], weights[low:high])
    return replace(shown, values=heights)


def _placed(curve: Curve) -> Curve:
    """The records that tell their tokens."""
    return curve.take(np.flatnonzero(np.isfinite(curve.tokens)))


def _tokens_of_a_step(curve: Curve) -> Numbers:
    """At each record, on average since the one before."""
    before = 0.0 if curve.steps[0] > 0 else curve.steps[0] - 1
    return np.diff(curve.tokens, prepend=0.0) / np.diff(curve.steps, prepend=before)


def _line_at(place: float, places: Numbers, values: Numbers, weights: Numbers) -> float:
    """The height at `place` of the line that fits best; the mean where all are at one place."""
    middle, height = np.average(places, weights=weights), np.average(values, weights=weights)
    away = places - middle
    width = np.dot(weights, away * away)
    return float(height + (place - middle) * np.dot(weights, away * (values - height)) / width if width else height)


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
    return replace(curve.take(edges[1:] - 1), values=means)
