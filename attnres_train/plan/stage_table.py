"""The stages of a plan as a table, like ones that follow each other on one line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from attnres_train.parallel.wire import Hop
from attnres_train.plan.page import in_mib, page_table
from attnres_train.plan.whole import Plan, StagePlan

_MOST_RUNS = 5
"""Of consecutive sources that a line lists; beyond that it counts them."""


def stage_table(plan: Plan) -> list[str]:
    """Lines of every stage, with what it receives of one micro-batch on one tensor rank. Those that differ in their
    layers' numbers alone share one, within a chunk."""
    stages, hops, size = plan.stages, plan.wire.plan.hops(), plan.wire.slice_bytes
    received = ["tokens", *(_received(hop) for hop in hops)]
    mib = ["", *(in_mib(hop.slices * size) for hop in hops)]

    def likeness(number: int) -> tuple[int, int, int, str]:
        return stages[number].chunk, stages[number].layers, stages[number].parameters, received[number]

    rows = [("stage", "rank", "chunk", "layers", "parameters", "MiB", "receives of a micro-batch")]
    for _, alike in groupby(range(len(stages)), key=likeness):
        numbers = list(alike)
        first, last = stages[numbers[0]], stages[numbers[-1]]
        each = " each" if len(numbers) > 1 else ""
        ranks, layers = _span(first.rank, last.rank), _layers(first, last)
        held = (str(first.chunk), f"{layers}{each}", f"{first.parameters:,}{each}")
        rows.append((_span(numbers[0], numbers[-1]), ranks, *held, mib[numbers[0]], received[numbers[0]]))
    return page_table(rows, right=(0, 1, 2, 4, 5))


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
