"""Means with confidence intervals by Student's t, and the compute at which a loss is reached; plain arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


class OutsideOfCurve(ValueError):
    """A loss that a curve does not pass; the argument says in a sentence why."""


@dataclass(frozen=True)
class Estimate:
    """A mean and the interval in which the true one lies with `CONFIDENCE`; of one value there is no interval."""

    mean: float
    low: float | None
    high: float | None
    n: int


def t_probability(t: float, freedom: int) -> float:
    """P(|T| <= t) of Student's t with a whole number of degrees of freedom, by its finite series.

    Abramowitz and Stegun, 26.7.3 and 26.7.4, with tan(angle) = t / sqrt(freedom).
    """
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(1 + odd, freedom, 2):
        total += term
        term *= cosine * cosine * power / (power + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def t_quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| <= t) = `confidence`: the half width of an interval in standard errors.

    Raises ValueError for a confidence outside of 0 to 1 or without a degree of freedom.
    """
    if not 0 < confidence < 1 or freedom < 1:
        raise ValueError(f"confidence {confidence}, {freedom} degrees of freedom")
    low, high = 0.0, 1.0
    while t_probability(high, freedom) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, freedom) < confidence else (low, middle)
    return (low + high) / 2


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Of at least one value.

    Raises ValueError where there is none.
    """
    n = len(values)
    if n == 0:
        raise ValueError("no values")
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, None, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = t_quantile(confidence, n - 1) * math.sqrt(variance / n)
    return Estimate(mean, mean - half, mean + half, n)


def ratio_estimate(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The geometric mean of positive ratios, its interval by their logarithms.

    Raises ValueError where there is none.
    """
    logs = estimate([math.log(ratio) for ratio in ratios], confidence)
    low, high = (None if edge is None else math.exp(edge) for edge in (logs.low, logs.high))
    return Estimate(math.exp(logs.mean), low, high, logs.n)


def compute_at(loss: float, compute: Sequence[float], losses: Sequence[float]) -> float:
    """The compute at which a curve first reaches `loss`: between two evaluations linear in loss and log compute.

    Raises OutsideOfCurve for a loss that it never reached, or had reached at its first point: nothing is extrapolated.
    """
    if not losses or not losses[0] > loss:
        raise OutsideOfCurve("it was reached before the first evaluation")
    for (before, above), (after, below) in zip(
        zip(compute, losses, strict=True), zip(compute[1:], losses[1:], strict=True), strict=False
    ):
        if below <= loss:
            # Where a curve rose in between, the way down begins at its last point above.
            share = (above - loss) / (above - below)
            return math.exp(math.log(before) + share * (math.log(after) - math.log(before)))
    raise OutsideOfCurve("it was never reached")


def compute_advantage(
    compute: Sequence[float], losses: Sequence[float], reference_compute: Sequence[float], reference: Sequence[float]
) -> float:
    """How many times the compute the reference needs for the loss that both reach: the worse of their last ones.

    Above one the reference is dearer. Raises OutsideOfCurve where that loss lies outside of a curve.
    """
    if not losses or not reference or not math.isfinite(losses[-1]) or not math.isfinite(reference[-1]):
        raise OutsideOfCurve("there is no last loss to compare at")
    for whose, evaluations in (("the run", losses), ("the reference", reference)):
        if len(evaluations) == 1:
            raise OutsideOfCurve(f"{whose} has one evaluation, and a curve needs two (training.eval_interval_steps)")
    level = max(losses[-1], reference[-1])
    return compute_at(level, reference_compute, reference) / compute_at(level, compute, losses)
