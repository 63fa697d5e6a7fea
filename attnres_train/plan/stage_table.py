"""The stages of a plan as a table, like ones that follow each other on one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from attnres_train.parallel.wire import Hop
from attnres_train.plan.page import in_mib, page_table
from attnres_train.plan.whole import Plan, StagePlan

_MOST_RUNS = 5
"""Of consecutive sources that a line lists; beyond that it counts them."""


@dataclass(frozen=True)
class _Row:
    """A stage, and what it receives of one micro-batch on one tensor rank."""

    number: int
    stage: StagePlan
    received: str
    mib: str


def stage_table(plan: Plan) -> list[str]:
    """Lines of every stage. Those that differ in their layers' numbers alone share one, within a chunk."""
    hops: list[Hop | None] = [None, *plan.wire.plan.hops()]
    size = plan.wire.slice_bytes
    rows = [
        _Row(number, stage, _received(hop) if hop else "tokens", in_mib(hop.slices * size) if hop else "")
        for number, (stage, hop) in enumerate(zip(plan.stages, hops, strict=True))
    ]
    head = ("stage", "rank", "chunk", "layers", "parameters", "MiB", "receives of a micro-batch")
    alike = [list(group) for _, group in groupby(rows, key=_likeness)]
    return page_table([head, *(_cells(group) for group in alike)], right=(0, 1, 2, 4, 5))


def _likeness(row: _Row) -> tuple[int, int, int, str]:
    return row.stage.chunk, row.stage.layers, row.stage.parameters, row.received


def _cells(group: Sequence[_Row]) -> tuple[str, ...]:
    first, last = group[0], group[-1]
    each = " each" if len(group) > 1 else ""
    return (
        _span(first.number, last.number),
        _span(first.stage.rank, last.stage.rank),
        str(first.stage.chunk),
        _layers(first.stage, last.stage) + each,
        f"{first.stage.parameters:,}{each}",
        first.mib,
        first.received,
    )


def _layers(first: StagePlan, last: StagePlan) -> str:
    if not first.layers:
        return "0"
    return f"{first.layers} ({_span(first.first_layer, last.first_layer + last.layers - 1)})"


def _received(hop: Hop) -> str:
    sources = hop.sources
    parts = [f"source {_ranges(sources)}" if len(sources) == 1 else f"sources {_ranges(sources)}"] if sources else []
    return " + ".join(parts + (["partial"] if hop.partial else [])) or "nothing"


def _ranges(numbers: Sequence[int]) -> str:
    """`0-2, 5` of 0, 1, 2, 5."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    if len(starts) > _MOST_RUNS:
        return f"{numbers[0]}, ..., {numbers[-1]} ({len(numbers)} of them)"
    return ", ".join(_span(a, b) for a, b in zip(starts, ends, strict=True))


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"
