"""One micro-batch on one stage, from its forward until its backward is done, and the order of what happens to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from attnres_train.depth.source import Source


class Visit(Enum):
    """Where a visit stands, by the call of the history cache that brought it there.

        arrive -> end (which `depart` calls) -> left -> wanted -> returned

    The first stage is not arrived at. In evaluation a visit is over with `end`. `left` is news of a transfer, which may
    come late: after `wanted` it means nothing any more. The last stage sends nothing: neither is called there.
    """

    COMPUTING = "arrive"
    KEPT = "end"
    AWAY = "left"
    WANTED = "wanted"
    OVER = "returned"


_BEFORE = {
    Visit.KEPT: (Visit.COMPUTING,),
    Visit.AWAY: (Visit.KEPT,),
    Visit.WANTED: (Visit.KEPT, Visit.AWAY),
}


@dataclass
class InFlight:
    """A visit with what it holds of the history."""

    received: tuple[Tensor, ...]
    sources: dict[int, Source]
    partial: Source | None
    slices: int
    """Slices that stand because of it: received or made, not those held from an earlier stage."""
    visit: Visit = Visit.COMPUTING

    def may_move(self, to: Visit) -> bool:
        return self.visit in _BEFORE[to]

    def values(self) -> list[Tensor]:
        """What its backward will read of the history."""
        partial = [] if self.partial is None else [self.partial]
        return [source.value for source in (*self.sources.values(), *partial)]
