"""What a page shows, as plain values: both drawings of a figure, the live one and the PNG, are made of the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attnres_train.observe.depth_map import ATTENTION, HEAD, MLP
from attnres_train.report.curves import Numbers

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#882255", "#999933", "#44aa99")
"""Told apart with every kind of colour vision (Okabe and Ito, then Tol). One a run, the same on the whole page."""
PHASE_COLOURS = ("#332288", "#88ccee", "#44aa99", "#bbbbbb", "#ddcc77", "#cc6677", "#eeeeee")

_USUAL, _BEYOND = (0.03, 0.97), 20
"""A spike lies more than so many times the distance of these quantiles beyond them: the fall of a loss does not."""

Style = Literal["line", "pale", "points", "dashed", "area"]
"""`pale`: thin behind a smoothed line. `points`: a line with a mark at each value. `area`: on the areas before it."""
ReaderKind = Literal["attention", "mlp", "head"]
LABEL_COLOURS: Mapping[ReaderKind, str] = {"attention": ATTENTION, "mlp": MLP, "head": HEAD}
"""As on the maps of a run."""


@dataclass(frozen=True)
class Series:
    """One line of a chart. `low` and `high` are the edges of a band around it."""

    label: str
    x: Numbers
    y: Numbers
    colour: str
    style: Style = "line"
    kinds: Sequence[ReaderKind] | None = None
    """What each point stands for, as its mark: a circle for attention, a square for an MLP, a diamond for the head."""
    low: Numbers | None = None
    high: Numbers | None = None
    in_legend: bool = True
    group: str = ""
    """What is hidden together by a click in the legend; by default each label is its own."""


@dataclass(frozen=True)
class Chart:
    """`name` is that of its PNG, without the ending; labels carry units."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    note: str = ""
    x_log: bool = False
    y_log: bool = False
    x_ticks: Sequence[tuple[float, str]] | None = None
    from_zero: bool = False
    """Whether the scale of y begins at zero; else a level line shows no size."""


def range_without_spikes(chart: Chart) -> tuple[float, float] | None:
    """The range of y to begin with where spikes of a raw curve would flatten everything else; None where none do."""
    values = np.concatenate([np.zeros(0), *(series.y for series in chart.series)])
    values = values[np.isfinite(values)]
    if chart.y_log or not len(values) or not any(series.style == "pale" for series in chart.series):
        return None
    low, high = np.quantile(values, _USUAL)
    beyond = _BEYOND * (high - low)
    usual = values[(values >= low - beyond) & (values <= high + beyond)]
    if len(usual) == len(values) or not beyond:
        return None
    least, most = (0.0 if chart.from_zero else float(usual.min())), float(usual.max())
    margin = 0.05 * (most - least)
    return least - (0.0 if chart.from_zero else margin), most + margin


@dataclass(frozen=True)
class Maps:
    """Weights by reader (rows, the first one on top) and source (columns), one map a look; NaN is not read."""

    name: str
    title: str
    rows: Sequence[tuple[str, ReaderKind]]
    columns: Sequence[str]
    steps: Sequence[int]
    cells: Sequence[NDArray[np.float64]]
    has_shares: bool
    """Whether the weights of a reader are shares of one, so that they can be held against an equal one."""
    by_share: bool
    """Whether the colours do so, unless somebody asks for the weights."""
    note: str = ""

    @property
    def largest(self) -> float:
        """The end of the colour scale, one for all looks."""
        return max(0.1, max(float(np.nanmax(cells)) for cells in self.cells))


@dataclass(frozen=True)
class Table:
    """`numbers`: columns that are aligned at their right. `folded`: below the figures, opened by a click on `note`."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()
    note: str = ""
    folded: bool = False

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, str]], first_number: int, note: str = "") -> Table:
        """Of at least one row of cells by column; from the column `first_number` on they are numbers."""
        head = list(rows[0])
        return cls(head, [list(row.values()) for row in rows], range(first_number, len(head)), note)


@dataclass(frozen=True)
class Section:
    title: str
    text: str
    items: Sequence[Chart | Maps | Table]

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-")


def both_in_legend(runs: int) -> bool:
    """Whether the dashed line of a run has an entry of its own: of more runs the text says what dashed ones are."""
    return runs <= 2


def colour_of(position: int) -> str:
    """Of the run at `position`; they repeat after ten."""
    return COLOURS[position % len(COLOURS)]


def reader_kind(reader: str) -> ReaderKind:
    """What the reader of this name is."""
    if reader.endswith("attention"):
        return "attention"
    return "mlp" if reader.endswith("mlp") else "head"
