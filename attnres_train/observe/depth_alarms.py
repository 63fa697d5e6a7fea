"""What in the depth of a model deserves a word of warning: pure functions of one look and of those before it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from attnres_train.observe.depth_look import SIZES, DepthLook, ReaderLook, is_share

COLLAPSED_SHARE = 0.98
"""A reader whose mean weight on one source is above this reads nothing else."""
DEAD_SHARE = 0.01
"""A source that gets less than this part of an equal share from every reader is never looked at."""
GROWTH = 10.0
"""A partial that has come to this many times the median of earlier looks, and still grows, may have no bound."""
LOOKS_BEFORE_GROWTH = 3
LOOKS_REMEMBERED = 50


@dataclass
class DepthAlarms:
    """Alarms are told when they begin, not at every look while they last."""

    partials: dict[str, list[float]] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    def new(self, look: DepthLook) -> list[str]:
        """What was not so at the look before, in words."""
        found = alarms(look, self.partials)
        for reader in look.readers:
            if reader.partial_rms is not None:
                sizes = self.partials.setdefault(reader.name, [])
                sizes.append(reader.partial_rms)
                del sizes[:-LOOKS_REMEMBERED]
        new = [words for key, words in found.items() if key not in self.told]
        self.told = set(found)
        return new


def alarms(look: DepthLook, partials: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """What is wrong in `look`, by a key that stays the same while it lasts.

    `partials`: the rms of each reader's partial at earlier looks, oldest first.
    """
    found = dict(_not_finite(look))
    for reader in look.readers:
        found |= dict(_collapsed(reader))
        found |= dict(_grows(reader, partials.get(reader.name, ())))
    return found | dict(_dead(look))


def _not_finite(look: DepthLook) -> Iterator[tuple[str, str]]:
    for reader in look.readers:
        sizes = {size: getattr(reader, size) for size in SIZES if getattr(reader, size) is not None}
        if wrong := [size for size, value in sizes.items() if not math.isfinite(value)]:
            yield f"not finite {reader.name}", f"{reader.name}: {', '.join(wrong)} not finite"


def _collapsed(reader: ReaderLook) -> Iterator[tuple[str, str]]:
    """Two sources may well be told apart for good; of three or more a reader should use several."""
    if not is_share(reader) or reader.weights is None or len(reader.weights) < 3:
        return
    largest = max(reader.weights)
    if largest > COLLAPSED_SHARE:
        of = source_in_words(reader, reader.weights.index(largest))
        words = f"{reader.name}: its query has collapsed on {of}, {largest:.1%} of the weight of {len(reader.weights)}"
        yield f"collapsed {reader.name}", words


def _grows(reader: ReaderLook, before: Sequence[float]) -> Iterator[tuple[str, str]]:
    now = reader.partial_rms
    if now is None or len(before) < LOOKS_BEFORE_GROWTH:
        return
    usual = sorted(before)[len(before) // 2]
    if now > GROWTH * usual and now > before[-1]:
        words = f"{reader.name}: the partial grows, rms {now:.3g} after {usual:.3g} in earlier looks"
        yield f"grows {reader.name}", words


def _dead(look: DepthLook) -> Iterator[tuple[str, str]]:
    """Sources that at least two readers may look at, and none does."""
    shares: dict[int, list[float]] = {}
    for reader in look.readers:
        if is_share(reader) and reader.weights is not None:
            for source, weight in zip(reader.sources, reader.weights, strict=False):
                shares.setdefault(source, []).append(weight * len(reader.weights))
    for source, given in sorted(shares.items()):
        if len(given) > 1 and max(given) < DEAD_SHARE:
            name = "the embedding" if source == 0 else f"source {source}"
            words = f"{name} is dead: none of its {len(given)} readers gives it {DEAD_SHARE:.0%} of an equal share"
            yield f"dead {source}", words


def source_in_words(reader: ReaderLook, position: int) -> str:
    """`the embedding`, `source 3`, `the partial`."""
    if position == len(reader.sources):
        return "the partial"
    number = reader.sources[position]
    return "the embedding" if number == 0 else f"source {number}"
