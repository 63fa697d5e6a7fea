"""Which source each draw comes from: a pure function of the position, in constant memory.

The weights become whole counts a period. Source s with count c_s wants its j-th draw at the time
(2j + 1) / (2 c_s) of the period; all wishes sorted give the table of one period, which repeats for ever.
Weights that are exact in decimals, such as 0.999 and 0.001, have an exact period; others are rounded to
counts in a period of MAX_PERIOD, an error of at most one draw a period.

At every moment a source with share w of k sources is within 1/2 + w k / 2 draws of its due.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from attnres_train.errors import Problem, Refused, refuse

MAX_PERIOD = 1 << 20


def period_counts(weights: Mapping[str, float]) -> tuple[int, ...]:
    """Draws of each source in one period, in the order of `weights`; 0 for weight 0.

    Raises Refused for weights that are negative, no number, all zero, or too small to be drawn at all.
    """
    wrong = [name for name, weight in weights.items() if not math.isfinite(weight) or weight < 0]
    if wrong:
        remedy = "give a number above 0, or 0 to leave the source out"
        raise Refused([Problem(name, f"has weight {weights[name]}", remedy) for name in wrong])
    # Through the decimal notation, so that 0.1 means one tenth and not the float nearest to it.
    exact = [Fraction(str(weight)) for weight in weights.values()]
    total = sum(exact)
    if total == 0:
        raise refuse(", ".join(weights) or "blend", "no source has a weight above 0", "give one a weight of 1")
    shares = [weight / total for weight in exact]
    period = math.lcm(*(share.denominator for share in shares))
    if period <= MAX_PERIOD:
        return tuple(int(share * period) for share in shares)
    counts = _round_to_sum([share * MAX_PERIOD for share in shares], MAX_PERIOD)
    for name, share, count in zip(weights, shares, counts, strict=True):
        if share and not count:
            what = f"its share {float(share):.3g} is less than one draw in {MAX_PERIOD}"
            raise refuse(name, what, "raise its weight, or give it 0 to leave it out")
    return counts


def _round_to_sum(values: Sequence[Fraction], total: int) -> tuple[int, ...]:
    """Whole numbers near `values` that sum to `total`: the largest remainders are rounded up."""
    counts = [math.floor(value) for value in values]
    by_remainder = sorted(range(len(values)), key=lambda i: counts[i] - values[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return tuple(counts)


class Blend:
    """The endless sequence of draws from weighted sources, numbered in the order of `weights`.

    Raises Refused as `period_counts` does.
    """

    def __init__(self, weights: Mapping[str, float]):
        self.counts = period_counts(weights)
        self.period = sum(self.counts)
        sources = np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)
        ordinals = np.concatenate([np.arange(count, dtype=np.int32) for count in self.counts])
        times = (2.0 * ordinals + 1.0) / np.repeat(np.asarray(self.counts, dtype=np.float64), self.counts)
        order = np.argsort(times, kind="stable")
        self._sources, self._ordinals = sources[order], ordinals[order]

    def locate(self, positions: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The source drawn at each position (0-based), and how many draws that source had before."""
        periods, within = np.divmod(np.asarray(positions, dtype=np.int64), self.period)
        if periods.size and int(periods.min()) < 0:
            raise ValueError("positions count from 0")
        sources = self._sources[within].astype(np.int64)
        ordinals = periods * np.asarray(self.counts, dtype=np.int64)[sources] + self._ordinals[within]
        return sources, ordinals

    def draws(self, total: int) -> tuple[int, ...]:
        """How many of the first `total` draws come from each source."""
        periods, rest = divmod(total, self.period)
        begun = np.bincount(self._sources[:rest], minlength=len(self.counts)).tolist()
        return tuple(periods * count + extra for count, extra in zip(self.counts, begun, strict=True))
