"""Charts and maps as figures of plotly, to look into."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go

from attnres_train.observe.depth_map import DOUBLING_TICKS, MOST_DOUBLINGS, SCALE_TICKS, over_equal_share
from attnres_train.report.charts import LABEL_COLOURS, Chart, Maps, Series, range_without_spikes

_MARKS = {"attention": "circle", "mlp": "square", "head": "diamond"}
_GRID = "#e8e8e8"
_TITLE_LETTERS = 64
"""A line of a title, in the narrowest column of a page."""
_PLOT, _BELOW, _LINE = 250, 58, 22
"""Heights in pixels: of what is plotted, of axis labels below it, of a line of the legend."""
_LEGEND_WIDTH, _LETTER, _BESIDE_LABEL = 440, 6.6, 46
"""Widths in pixels: of the narrowest legend, of a letter, of mark and gap beside a label."""


def live_chart(chart: Chart) -> go.Figure:
    figure = go.Figure([trace for series in chart.series for trace in _traces(series)])
    _lay_out(figure, chart.title, chart.x_label, chart.y_label)
    entries = _legend_lines([series.label for series in chart.series if series.in_legend])
    figure.update_layout(height=figure.layout.margin.t + _PLOT + _BELOW + _LINE * entries)
    figure.update_layout(legend={"y": -_BELOW / _PLOT})
    if chart.from_zero:
        figure.update_yaxes(rangemode="tozero")
    if (shown := range_without_spikes(chart)) is not None:
        figure.update_yaxes(range=shown)
    figure.update_xaxes(exponentformat="SI")
    if chart.x_log:
        figure.update_xaxes(type="log", tickformat="~s", dtick=_log_ticks([series.x for series in chart.series]))
    if chart.y_log:
        figure.update_yaxes(type="log", tickformat="~g", dtick=_log_ticks([series.y for series in chart.series]))
    if chart.x_ticks is not None:
        figure.update_xaxes(tickvals=[x for x, _ in chart.x_ticks], ticktext=[text for _, text in chart.x_ticks])
    return figure


def live_maps(maps: Maps) -> go.Figure:
    """One map and, for several looks, a slider; the last look is shown first. Where weights are shares, with buttons
    for what colours stand for."""
    scales = [False, True] if maps.has_shares else [False]
    steps: list[dict[str, Any]] = []
    for step, cells in zip(maps.steps, maps.cells, strict=True):
        shown = {"z": [_plain(_lifted(cells, by_share)) for by_share in scales], "customdata": [_plain(cells)]}
        steps.append({"label": f"{step:,}", "method": "restyle", "args": [shown, list(range(len(scales)))]})
    figure = go.Figure([_heatmap(maps, by_share) for by_share in scales])
    _lay_out(figure, maps.title, "source", "reader")
    height = figure.layout.margin.t + min(860, 170 + 20 * len(maps.rows))
    figure.update_layout(height=height, plot_bgcolor="#e6e6e6")
    names = [f'<span style="color:{LABEL_COLOURS[kind]}">{name}</span>' for name, kind in maps.rows]
    every = -(-len(names) // 80)
    ticks = {"tickvals": [name for name, _ in maps.rows][::every], "ticktext": names[::every]}
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False, **ticks)
    if len(steps) > 1:
        slider = {"active": len(steps) - 1, "currentvalue": {"prefix": "step "}, "pad": {"t": 60}, "steps": steps}
        figure.update_layout(sliders=[slider], height=figure.layout.height + 90)
    if maps.has_shares:
        figure.update_layout(updatemenus=[_scale_buttons(maps.by_share)])
        figure.update_layout(margin={"t": figure.layout.margin.t + 30}, height=figure.layout.height + 30)
    return figure


def _heatmap(maps: Maps, by_share: bool) -> go.Heatmap:
    last = maps.cells[-1]
    weights: dict[str, Any] = {"zmin": 0.0, "zmax": maps.largest**0.5, "colorscale": "Viridis"}
    doublings = {"zmin": -MOST_DOUBLINGS, "zmax": MOST_DOUBLINGS, "colorscale": "RdBu", "reversescale": True}
    times = ", 2^%{z:.1f} times an equal share" if by_share else ""
    return go.Heatmap(
        z=_lifted(last, by_share),
        customdata=last,
        y=[name for name, _ in maps.rows],
        x=list(maps.columns),
        **(doublings if by_share else weights),
        colorbar=_colour_bar(maps.largest, by_share),
        hovertemplate=f"%{{y}} reads %{{x}}: %{{customdata:.4f}}{times}<extra></extra>",
        hoverongaps=False,
        visible=by_share == maps.by_share,
    )


def _scale_buttons(by_share: bool) -> dict[str, Any]:
    """Above the map, at its right."""
    buttons = [
        {"label": label, "method": "restyle", "args": [{"visible": [not share, share]}, [0, 1]]}
        for label, share in (("weight", False), ("over an equal share", True))
    ]
    place = {"x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom", "pad": {"b": 4}}
    return {"type": "buttons", "direction": "right", "active": int(by_share), "buttons": buttons, **place}


def _traces(series: Series) -> list[Any]:
    traces = []
    if series.low is not None and series.high is not None:
        around = {"x": np.concatenate([series.x, series.x[::-1]]), "y": np.concatenate([series.high, series.low[::-1]])}
        band = {"fill": "toself", "fillcolor": series.colour, "opacity": 0.18, "line": {"width": 0}, "mode": "lines"}
        hidden = {"hoverinfo": "skip", "showlegend": False, "legendgroup": series.group or series.label}
        traces.append(go.Scatter(**around, **band, **hidden))
    look: dict[str, Any] = {"mode": "lines", "line": {"color": series.colour, "width": 2}}
    if series.style == "pale":
        look |= {"opacity": 0.35, "line": {"color": series.colour, "width": 1}}
    elif series.style == "area":
        look |= {"stackgroup": "one", "line": {"width": 0}, "fillcolor": series.colour}
    elif series.style in ("points", "dashed"):
        marks = "circle" if series.kinds is None else [_MARKS[kind] for kind in series.kinds]
        dashed = series.style == "dashed"
        size, dash = (5, "dot") if dashed else (7, "solid")
        look |= {"mode": "lines+markers", "marker": {"symbol": marks, "size": size, "color": series.colour}}
        look |= {"line": {"color": series.colour, "dash": dash, "width": 1.3}}
    hover = f"{series.label}<br>%{{x:,.6~g}}: %{{y:.5~g}}<extra></extra>"
    legend = {"showlegend": series.in_legend, "legendgroup": series.group or series.label}
    traces.append(go.Scatter(x=series.x, y=series.y, name=series.label, hovertemplate=hover, **legend, **look))
    return traces


def _lay_out(figure: go.Figure, title: str, x_label: str, y_label: str) -> None:
    lines = textwrap.wrap(title, _TITLE_LETTERS)
    figure.update_layout(
        template="none",
        title={
            "text": "<br>".join(escape(line, quote=False) for line in lines),
            "x": 0.01,
            "y": 0.99,
            "yanchor": "top",
            "pad": {"t": 4 + 4 * len(lines)},
            "font": {"size": 15},
        },
        margin={"l": 8, "r": 8, "t": 22 + 20 * len(lines), "b": 8},
        font={"family": "system-ui, sans-serif", "size": 12},
        legend={"orientation": "h", "yanchor": "top", "x": 0},
        hovermode="closest",
        autosize=True,
    )
    figure.update_xaxes(title={"text": x_label, "standoff": 6}, automargin=True, gridcolor=_GRID, zeroline=False)
    figure.update_yaxes(title={"text": y_label, "standoff": 6}, automargin=True, gridcolor=_GRID, zeroline=False)


def _legend_lines(labels: Sequence[str]) -> int:
    """Lines of a legend in the narrowest column; with fewer than it needs it would get a bar to scroll."""
    lines, left = 0, 0.0
    for label in labels if len(labels) > 1 else ():
        wide = _BESIDE_LABEL + _LETTER * len(label)
        if wide > left:
            lines, left = lines + 1, float(_LEGEND_WIDTH)
        left -= wide
    return lines


def _log_ticks(numbers: Sequence[NDArray[np.float64]]) -> str | int:
    """1, 2 and 5 of each decade where there are few of them, else the decades alone; left alone, labels overlap."""
    values = np.concatenate(numbers)
    values = values[np.isfinite(values) & (values > 0)]
    return "D2" if len(values) and values.max() < 1e4 * values.min() else 1


def _lifted(cells: NDArray[np.float64], by_share: bool) -> NDArray[np.float64]:
    """Square roots, so that steps among small weights show; a weight below zero has the colour of zero. Or doublings
    over an equal share."""
    return over_equal_share(cells) if by_share else np.sqrt(np.maximum(cells, 0.0))


def _plain(cells: NDArray[np.float64]) -> list[list[float | None]]:
    """Lists, for in the steps of a slider plotly's script reads no packed arrays; four digits keep them short."""
    return [[None if np.isnan(cell) else round(float(cell), 4) for cell in row] for row in cells]


def _colour_bar(largest: float, by_share: bool) -> dict[str, Any]:
    shown = [tick for tick in SCALE_TICKS if tick <= largest]
    weights = {"tickvals": [tick**0.5 for tick in shown], "ticktext": [f"{tick:g}" for tick in shown]}
    doublings = {"tickvals": list(DOUBLING_TICKS), "ticktext": list(DOUBLING_TICKS.values())}
    ticks, title = (doublings, "times an equal share") if by_share else (weights, "mean weight")
    return {"title": {"text": title, "side": "right"}, "thickness": 14, **ticks}
