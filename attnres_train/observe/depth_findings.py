"""What in the depth of a model deserves a word of warning: pure functions of one look and of those before it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attnres_train.observe.depth_look import SIZES, DepthLook, ReaderLook, is_share

COLLAPSED_SHARE, USES_SEVERAL_SHARE = 0.98, 0.9
"""A reader whose mean weight on one source is above the first reads nothing else; below the second it does again."""
DEAD_SHARE, ALIVE_SHARE = 0.01, 0.02
"""A source that gets less than this part of an equal share from every reader is never looked at; of that much, it is
again."""
GROWTH, BOUNDED_GROWTH = 10.0, 5.0
"""A partial that has come to this many times the median of earlier looks, and still grows, may have no bound; below
that many times it seems to have one."""
LOOKS_BEFORE_GROWTH = 3


@dataclass(frozen=True)
class Finding:
    """Something wrong. `raised`: enough to be told; else not enough, yet what has been told is not over."""

    kind: Literal["not finite", "collapsed", "grows", "dead"]
    name: str
    """The reader or the source that it is about."""
    words: str
    raised: bool

    @property
    def key(self) -> tuple[str, str]:
        """The same as long as it lasts."""
        return self.kind, self.name


def findings(look: DepthLook, partials: Mapping[str, Sequence[float]]) -> list[Finding]:
    """What is wrong in `look`.

    `partials`: the rms of each reader's partial at earlier looks, oldest first, all finite.
    """
    found = list(_not_finite(look))
    for reader in look.readers:
        found += _collapsed(reader)
        found += _grows(reader, partials.get(reader.name, ()))
    return found + list(_dead(look))


def source_in_words(reader: ReaderLook, position: int) -> str:
    """`the embedding`, `source 3`, `the partial`."""
    return "the partial" if position == len(reader.sources) else _source_name(reader.sources[position])


def _source_name(number: int) -> str:
    return "the embedding" if number == 0 else f"source {number}"


def _not_finite(look: DepthLook) -> Iterator[Finding]:
    """One for all readers: a single such number spreads to most of them."""
    wrong: dict[str, list[str]] = {}
    for reader in look.readers:
        for size in SIZES:
            value = getattr(reader, size)
            if value is not None and not math.isfinite(value):
                wrong.setdefault(reader.name, []).append(size)
    if wrong:
        first, sizes = next(iter(wrong.items()))
        where = f"in {len(wrong)} of {len(look.readers)} readers, first {first}: {', '.join(sizes)}"
        yield Finding("not finite", "", f"not finite {where}", raised=True)


def _collapsed(reader: ReaderLook) -> Iterator[Finding]:
    """Two sources may well be told apart for good; of three or more a reader should use several."""
    if not is_share(reader) or reader.weights is None or len(reader.weights) < 3:
        return
    largest = max(reader.weights)
    if largest > USES_SEVERAL_SHARE:
        of = source_in_words(reader, reader.weights.index(largest))
        words = f"{reader.name}: its query has collapsed on {of}, {largest:.1%} of the weight of {len(reader.weights)}"
        yield Finding("collapsed", reader.name, words, raised=largest > COLLAPSED_SHARE)


def _grows(reader: ReaderLook, before: Sequence[float]) -> Iterator[Finding]:
    now = reader.partial_rms
    if now is None or len(before) < LOOKS_BEFORE_GROWTH:
        return
    usual = sorted(before)[len(before) // 2]
    if not now <= BOUNDED_GROWTH * usual:  # what is not a number has no bound either
        words = f"{reader.name}: the partial grows, rms {now:.3g} after {usual:.3g} in earlier looks"
        raised = math.isfinite(now) and now > GROWTH * usual and now > before[-1]
        yield Finding("grows", reader.name, words, raised)


def _dead(look: DepthLook) -> Iterator[Finding]:
    """Sources that at least two readers may look at, and none does."""
    shares: dict[int, list[float]] = {}
    for reader in look.readers:
        if is_share(reader) and reader.weights is not None:
            for source, weight in zip(reader.sources, reader.weights, strict=False):
                shares.setdefault(source, []).append(weight * len(reader.weights))
    for source, given in sorted(shares.items()):
        if len(given) > 1 and max(given) < ALIVE_SHARE:
            name = _source_name(source)
            words = f"{name} is dead: none of its {len(given)} readers gives it {DEAD_SHARE:.0%} of an equal share"
            yield Finding("dead", name, words, raised=max(given) < DEAD_SHARE)
