"""What the looks at the depth show: maps of weights over time, and sizes and weights by depth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from attnres_train.observe.depth_look import DepthLook
from attnres_train.observe.depth_map import column_name, has_shares, map_cells, map_columns, shows_shares
from attnres_train.report.charts import Chart, Maps, Section, Series, Style, both_in_legend, colour_of, reader_kind
from attnres_train.report.curves import Numbers
from attnres_train.report.run_folder import RunFiles

_MOST_TICKS = 40
_MOST_CELLS = 200_000
"""Of all maps of a run, so that the page of a deep model stays light; the first and the last look stay."""
BY_DEPTH: Sequence[tuple[str, str, str, bool]] = (
    ("input_rms", "What a sublayer reads", "rms before its norm", True),
    ("output_rms", "What a sublayer puts out", "rms", True),
    ("partial_rms", "The running sum after a sublayer", "rms", True),
    ("gradient_rms", "Gradient of a sublayer's output", "rms, of summed losses", True),
    ("query_norm", "Norm of a reader's query", "norm", False),
    ("entropy", "Entropy of a reader's weights", "nats", False),
    ("on_embedding", "Weight on the embedding", "mean weight", False),
    ("on_newest", "Weight on the newest complete source", "mean weight", False),
    ("on_partial", "Weight on the partial", "mean weight", False),
)
"""Attribute of a reader's look, title, unit, and whether the scale is logarithmic."""


def map_section(runs: Sequence[RunFiles]) -> Section:
    text = (
        "Where readers look: the mean weight of each source (across) for each sublayer and the head (down). Blue names "
        "are attention, brown ones MLPs. Colours stand for the weight, in finer steps among small ones, or, of many "
        "sources, where that would be dark all over, for the weight over an equal share of what is read: red is more, "
        "blue less. Buttons change between both. Colours mean the same at all looks."
    )
    without = [run.label for run in runs if run.looks and not _weighs(run)]
    text += f" No map, for nothing is weighed: {', '.join(without)}." if without else ""
    return Section("Depth maps", text, [maps for i, run in enumerate(runs) if (maps := depth_maps(run, i))])


def by_depth_section(runs: Sequence[RunFiles]) -> Section:
    text = (
        "Along the depth: circles are attention, squares MLPs, the diamond is the head. Solid: the last look; dashed: "
        "the first. Sums that grow with depth beside outputs that do not are PreNorm's dilution; bounded sums and even "
        "gradients are what attention over depth is for."
    )
    charts = [
        by_depth_chart(f"depth-{what.replace('_', '-')}", title, unit, logarithmic, list(_first_and_last(runs, what)))
        for what, title, unit, logarithmic in BY_DEPTH
    ]
    return Section("By depth", text, [chart for chart in charts if chart.series])


def depth_maps(run: RunFiles, number: int) -> Maps | None:
    """None where nothing is weighed, as with the standard residual."""
    if not _weighs(run):
        return None
    last = run.looks[-1][1]
    columns = map_columns(last)
    alike = [(step, look) for step, look in run.looks if _names(look) == _names(last)]
    most = max(2, _MOST_CELLS // (len(last.readers) * len(columns)))
    if len(alike) > most:
        chosen = np.linspace(0, len(alike) - 1, most).round().astype(int)
        alike = [alike[position] for position in chosen]
    cells = [np.array(map_cells(look, columns), dtype=np.float64) for _, look in alike]
    note = f"{len(alike)} of {run.looks_taken} looks." if len(alike) < run.looks_taken else ""
    return Maps(
        f"depth-map-{number + 1}",
        f"Where readers look: {run.label}",
        [(reader.name, reader_kind(reader.name)) for reader in last.readers],
        [column_name(column) for column in columns],
        [step for step, _ in alike],
        cells,
        all(has_shares(look) for _, look in alike),
        shows_shares(last),
        note,
    )


def by_depth_chart(name: str, title: str, unit: str, logarithmic: bool, series: Sequence[Series]) -> Chart:
    """Ticks name the layers of the deepest run: two sublayers each."""
    furthest = max((int(one.x[-1]) for one in series), default=0)
    every = 2 * math.ceil((furthest // 2 + 1) / _MOST_TICKS)
    at_heads = {int(one.x[-1]) for one in series if one.kinds and one.kinds[-1] == "head"}
    ticks = [(float(r), "head" if r in at_heads else str(r // 2)) for r in range(0, furthest + 1, every)]
    label = "layer (attention, then MLP)"
    return Chart(name, title, label, unit, series, y_log=logarithmic, x_ticks=ticks, from_zero=not logarithmic)


def profile(look: DepthLook, what: str) -> tuple[Numbers, Numbers, list[str]] | None:
    """Position, value and name of the readers that have one of this attribute; None where none has."""
    known = ((position, getattr(reader, what), reader.name) for position, reader in enumerate(look.readers))
    found = [point for point in known if point[1] is not None and math.isfinite(point[1])]
    if not found:
        return None
    positions, values, names = zip(*found, strict=True)
    return np.array(positions, dtype=np.float64), np.array(values, dtype=np.float64), list(names)


def _first_and_last(runs: Sequence[RunFiles], what: str) -> Iterator[Series]:
    both = both_in_legend(len(runs))
    for number, run in enumerate(runs):
        looks = [run.looks[0], run.looks[-1]] if len(run.looks) > 1 else list(run.looks)
        for step, look in looks:
            if (points := profile(look, what)) is not None:
                x, y, names = points
                style: Style = "points" if step == looks[-1][0] else "dashed"
                kinds, group = [reader_kind(name) for name in names], "" if both else run.label
                label, shown = f"{run.label}, step {step:,}", both or style == "points"
                yield Series(label, x, y, colour_of(number), style, kinds, in_legend=shown, group=group)


def _weighs(run: RunFiles) -> bool:
    return bool(run.looks) and any(reader.weights for reader in run.looks[-1][1].readers)


def _names(look: DepthLook) -> list[tuple[str, tuple[int, ...], bool]]:
    return [(reader.name, reader.sources, reader.partial) for reader in look.readers]
