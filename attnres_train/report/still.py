"""Charts and maps as PNG files, by matplotlib."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attnres_train.observe.depth_map import draw_cells, draw_scale
from attnres_train.report.charts import LABEL_COLOURS, Chart, Maps, Series, range_without_spikes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS = {"attention": "o", "mlp": "s", "head": "D"}
_MOST_MAPS = 4


def still_chart(chart: Chart) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    areas = [series for series in chart.series if series.style == "area"]
    if areas:
        values, colours = [area.y for area in areas], [area.colour for area in areas]
        axes.stackplot(areas[0].x, values, labels=[area.label for area in areas], colors=colours)
    for series in chart.series:
        if series.style != "area":
            _draw(axes, series)
    axes.set_title(as_it_is(chart.title), fontsize=11, loc="left", wrap=True)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.set_xscale("log" if chart.x_log else "linear")
    above_zero = any((series.y > 0).any() for series in chart.series)
    axes.set_yscale("log" if chart.y_log and above_zero else "linear")
    if chart.from_zero:
        axes.set_ylim(bottom=0.0)
    if (shown := range_without_spikes(chart)) is not None:
        axes.set_ylim(shown)
    if chart.x_ticks is not None:
        axes.set_xticks([x for x, _ in chart.x_ticks], [text for _, text in chart.x_ticks])
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#ececec")
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=8)
    return figure


def still_maps(maps: Maps) -> Figure:
    """At most four looks side by side, from the first to the last."""
    from matplotlib.figure import Figure

    chosen = np.unique(np.linspace(0, len(maps.steps) - 1, min(_MOST_MAPS, len(maps.steps))).round().astype(int))
    width = 1.5 + len(chosen) * min(4.0, 1.0 + 0.22 * len(maps.columns))
    height = min(14.0, 1.4 + 0.22 * len(maps.rows))
    figure = Figure(figsize=(max(width, 4.5), max(height, 3.0)), layout="constrained")
    everybody = figure.subplots(1, len(chosen), squeeze=False, sharey=True)[0]
    image: Any = None
    for axes, number in zip(everybody, chosen, strict=True):
        image = draw_cells(axes, maps.cells[number], maps.largest, by_share=maps.by_share)
        axes.set_title(f"step {maps.steps[number]:,}", fontsize=9)
        every = math.ceil(len(maps.columns) / 30)
        shown = range(0, len(maps.columns), every)
        axes.set_xticks(shown, [maps.columns[i] for i in shown], rotation=90, fontsize=7)
    every = math.ceil(len(maps.rows) / 60)
    rows = range(0, len(maps.rows), every)
    everybody[0].set_yticks(rows, [maps.rows[i][0] for i in rows], fontsize=7)
    for row, label in zip(rows, everybody[0].get_yticklabels(), strict=True):
        label.set_color(LABEL_COLOURS[maps.rows[row][1]])
    figure.suptitle(as_it_is(maps.title), fontsize=11, wrap=True)
    figure.supxlabel("source", fontsize=9)
    figure.supylabel("reader", fontsize=9)
    draw_scale(figure, image, everybody[-1], maps.largest, by_share=maps.by_share)
    return figure


def as_it_is(text: str) -> str:
    """For matplotlib, to which what stands between dollar signs is a formula."""
    return text.replace("$", r"\$")


def _draw(axes: Axes, series: Series) -> None:
    # A label that begins with an underscore is left out of legends: that of a folder may, ours shall.
    shown = as_it_is(f" {series.label}" if series.label.startswith("_") else series.label)
    label = shown if series.in_legend else f"_{shown}"
    if series.low is not None and series.high is not None:
        axes.fill_between(series.x, series.low, series.high, color=series.colour, alpha=0.18, linewidth=0)
    if series.style in ("line", "pale"):
        width, alpha = (1.8, 1.0) if series.style == "line" else (0.8, 0.35)
        axes.plot(series.x, series.y, color=series.colour, linewidth=width, alpha=alpha, label=label)
        return
    dashed = series.style == "dashed"
    line, size = (":", 3.5) if dashed else ("-", 5.0)
    mark = "o" if series.kinds is None else ""
    shared: dict[str, Any] = {"color": series.colour, "linewidth": 1.2, "linestyle": line, "markersize": size}
    axes.plot(series.x, series.y, marker=mark or None, label=label, **shared)
    for kind in dict.fromkeys(series.kinds or ()):
        here = np.array([one == kind for one in series.kinds or ()])
        axes.plot(series.x[here], series.y[here], _MARKS[kind], color=series.colour, markersize=size)
