"""What in the depth of a model deserves a word of warning, and when that is told: as it begins, few lines at a time.

Findings are pure functions of one look and of those before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
LOOKS_REMEMBERED = 50
MOST_LINES_A_KIND = 4
NAMES_OF_MANY = 4


@dataclass
class DepthAlarms:
    """Alarms are told when they begin, and anew only after they were clearly over."""

    partials: dict[str, list[float]] = field(default_factory=dict)
    told: set[tuple[str, str]] = field(default_factory=set)

    def new(self, look: DepthLook) -> list[str]:
        """What begins with this look, in words."""
        found = findings(look, self.partials)
        for reader in look.readers:
            if reader.partial_rms is not None and math.isfinite(reader.partial_rms):
                sizes = self.partials.setdefault(reader.name, [])
                sizes.append(reader.partial_rms)
                del sizes[:-LOOKS_REMEMBERED]
        begun = [finding for finding in found if finding.raised and finding.key not in self.told]
        self.told = {finding.key for finding in found if finding.raised or finding.key in self.told}
        return list(_lines(begun))


def _lines(begun: Sequence[Finding]) -> Iterator[str]:
    """A line each; of many of a kind one, with their number and the first few names."""
    for kind in dict.fromkeys(finding.kind for finding in begun):
        alike = [finding for finding in begun if finding.kind == kind]
        if len(alike) <= MOST_LINES_A_KIND:
            yield from (finding.words for finding in alike)
        else:
            others = ", ".join(finding.name for finding in alike[1:NAMES_OF_MANY])
            yield f"{len(alike)} alike, first {alike[0].words}; then {others} and {len(alike) - NAMES_OF_MANY} more"


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
