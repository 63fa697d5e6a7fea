"""Which findings of looks at the depth are told, and in how many lines: when they begin, and few at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from attnres_train.observe.depth_findings import Finding, findings
from attnres_train.observe.depth_look import DepthLook

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
