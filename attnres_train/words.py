"""Numbers in sentences, their units, and the nearest valid ones for remedies."""

from __future__ import annotations

from collections.abc import Sequence

MIB, GIB = 2**20, 2**30


def counted(number: int, noun: str) -> str:
    """`1 layer`, `2 layers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def join_or(numbers: Sequence[object]) -> str:
    """`8 or 12`; digits are not grouped, so that they can be copied."""
    return " or ".join(str(number) for number in numbers)


def nearest_multiples(number: int, unit: int, least: int = 1) -> list[int]:
    """The multiples of `unit` next to `number` on both sides, none below `least`; ascending, never empty.

    `number` itself counts as the lower one where it is a multiple.
    """
    first = -(-least // unit) * unit
    below = number // unit * unit
    return [size for size in (below, below + unit) if size >= first] or [first]


def nearest_divisors(number: int, whole: int) -> list[int]:
    """The divisors of `whole` next to `number` on both sides, itself the lower one where it divides."""
    small = [candidate for candidate in range(1, int(whole**0.5) + 1) if whole % candidate == 0]
    divisors = sorted({*small, *(whole // candidate for candidate in small)})
    below = [divisor for divisor in divisors if divisor <= number]
    above = [divisor for divisor in divisors if divisor > number]
    return below[-1:] + above[:1]
