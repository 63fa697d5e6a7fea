"""The map of a look: readers down, sources across, the mean weight as colour. Needs matplotlib.

Of few sources the colour is the weight itself. Of many an equal share is small and all weights look alike: there it is
the weight over an equal share of the reader's sources, in doublings.
"""

from __future__ import annotations

import math
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from attnres_train.observe.depth_look import DepthLook, is_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MOST_LABELS = 40
MOST_NUMBERED = 24
"""Columns up to which each cell has its number written in it; of more they would not fit, nor in lower cells."""
SCALE_TICKS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
"""Marks of a scale of colours that goes by square roots."""
MOST_DOUBLINGS = 5
"""Both ends of the scale of weights over an equal share: a 32nd of it and 32 times as much."""
DOUBLING_TICKS = {n: f"{2**n}" if n >= 0 else f"1/{2**-n}" for n in range(-MOST_DOUBLINGS, MOST_DOUBLINGS + 1)}
ATTENTION, MLP, HEAD = "#1f4e79", "#a0522d", "#222222"
"""Colours of the names of readers."""
_CELL_INCHES, _MOST_INCHES = 0.3, 14.0
_POINTS_AN_INCH = 72


def draw_map(look: DepthLook, title: str) -> Figure | None:
    """None where nothing is weighed, as in the standard residual."""
    if not any(reader.weights for reader in look.readers):
        return None
    from matplotlib.figure import Figure

    columns = map_columns(look)
    numbered = len(columns) <= MOST_NUMBERED and len(look.readers) <= MOST_LABELS
    width = min(_MOST_INCHES, 3.0 + (1.2 if numbered else 1.0) * _CELL_INCHES * len(columns))
    height = min(_MOST_INCHES, 1.6 + _CELL_INCHES * len(look.readers))
    figure = Figure(figsize=(max(width, 4.5), max(height, 3.0)), layout="constrained")
    axes = figure.add_subplot()
    cells = np.array(map_cells(look, columns))
    # Steps among small weights must show: of 100 sources an equal share is 0.01.
    most = max(float(np.nanmax(cells)), 0.1)
    image = draw_cells(axes, cells, most, by_share=shows_shares(look))
    axes.set_title(title, fontsize=11)
    axes.set_xlabel("source (grey: not read)")
    axes.set_ylabel("reader")
    _label(axes, look, columns)
    if numbered:
        _write_numbers(axes, cells, 0.4 * most)
    draw_scale(figure, image, axes, most, by_share=shows_shares(look))
    return figure


def shows_shares(look: DepthLook) -> bool:
    """Whether a map is best coloured by weights over an equal share."""
    return len(map_columns(look)) > MOST_NUMBERED and has_shares(look)


def has_shares(look: DepthLook) -> bool:
    """Whether an equal share means something to every reader that weighs."""
    return all(is_share(reader) for reader in look.readers if reader.weights is not None)


def over_equal_share(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Doublings from an equal share of what is read in each row to each weight; 0 is as much as any other source."""
    read = np.count_nonzero(~np.isnan(cells), axis=1, keepdims=True)
    return np.clip(np.log2(np.maximum(cells * read, 2.0**-MOST_DOUBLINGS)), -MOST_DOUBLINGS, MOST_DOUBLINGS)


def draw_cells(axes: Axes, cells: NDArray[np.float64], most: float, *, by_share: bool) -> Any:
    """The weights as colours, on a scale up to `most` or of doublings over an equal share."""
    from matplotlib.colors import Normalize, PowerNorm

    axes.set_facecolor("#e6e6e6")  # what is not read
    shown: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}
    if by_share:
        scale = Normalize(-MOST_DOUBLINGS, MOST_DOUBLINGS)
        return axes.imshow(over_equal_share(cells), cmap="RdBu_r", norm=scale, **shown)
    return axes.imshow(cells, cmap="viridis", norm=PowerNorm(0.5, vmin=0.0, vmax=most), **shown)


def draw_scale(figure: Figure, image: Any, axes: Axes, most: float, *, by_share: bool) -> Colorbar:
    """What the colours of `draw_cells` stand for."""
    weights = {tick: f"{tick:g}" for tick in SCALE_TICKS if tick <= most}
    ticks, label = (DOUBLING_TICKS, "times an equal share") if by_share else (weights, "mean weight")
    bar = figure.colorbar(image, ax=axes, label=label, shrink=0.8)
    bar.set_ticks(list(ticks), labels=list(ticks.values()))
    return bar


def png(figure: Figure, dpi: int = 110) -> bytes:
    data = BytesIO()
    figure.savefig(data, format="png", dpi=dpi)
    return data.getvalue()


def map_columns(look: DepthLook) -> list[int | None]:
    """Sources by number; None stands for the partial, at the right."""
    sources: list[int | None] = list(range(1 + max(max(reader.sources, default=0) for reader in look.readers)))
    return sources + ([None] if any(reader.partial for reader in look.readers) else [])


def column_name(column: int | None) -> str:
    return {0: "embedding", None: "partial"}.get(column, str(column))


def map_cells(look: DepthLook, columns: list[int | None]) -> list[list[float]]:
    """Mean weights, a row a reader; NaN where a source is not read."""
    rows = []
    for reader in look.readers:
        names = [*reader.sources, *([None] if reader.partial else [])]
        weights = dict(zip(names, reader.weights or (), strict=False))
        rows.append([weights.get(column, float("nan")) for column in columns])
    return rows


def _write_numbers(axes: Axes, cells: NDArray[np.float64], dark_up_to: float) -> None:
    """Each weight in its cell, in dark ink on light colours and in light ink on those up to `dark_up_to`."""
    for row, weights in enumerate(cells):
        for column, weight in enumerate(weights):
            if not math.isnan(weight):
                ink = "white" if weight <= dark_up_to else "black"
                axes.text(column, row, f"{weight:.2f}", ha="center", va="center", fontsize=7.5, color=ink)


def _label(axes: Axes, look: DepthLook, columns: list[int | None]) -> None:
    every = -(-len(columns) // MOST_LABELS)
    shown = [i for i, column in enumerate(columns) if i % every == 0 or column is None]
    axes.set_xticks(shown, [column_name(columns[i]) for i in shown], rotation=90, fontsize=9)
    every = -(-len(look.readers) // (2 * MOST_LABELS))
    last = len(look.readers) - 1
    rows = [i for i in range(len(look.readers)) if (i % every == 0 and i <= last - every) or i == last]
    apart = _POINTS_AN_INCH * min(_CELL_INCHES, _MOST_INCHES / len(rows))
    axes.set_yticks(rows, [look.readers[i].name for i in rows], fontsize=min(9.0, 0.6 * apart))
    for row, label in zip(rows, axes.get_yticklabels(), strict=True):
        name = look.readers[row].name
        label.set_color(HEAD if name == "head" else MLP if name.endswith("mlp") else ATTENTION)
