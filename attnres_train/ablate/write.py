"""The report of a grid: a page, PNGs, `results.md` and `results.json`, all of the same tables and charts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from attnres_train.ablate.grid import RunGrid
from attnres_train.ablate.results import Cell, Results
from attnres_train.ablate.statistics import CONFIDENCE, Estimate, estimate
from attnres_train.ablate.tables import cost_table, how_to_read, interval, loss_table, settings_table, size_table
from attnres_train.errors import refuse
from attnres_train.report.charts import Chart, Section, Series, Table, colour_of, reader_kind
from attnres_train.report.depth_charts import by_depth_chart
from attnres_train.report.facts import NOT_THERE
from attnres_train.report.write import write_sections
from attnres_train.strict_json import dumps

_SIZES = {
    "partial_rms": ("Running sum after a sublayer", "rms"),
    "output_rms": ("Output of a sublayer", "rms"),
    "input_rms": ("Input of a sublayer", "rms before its norm"),
    "gradient_rms": ("Gradient of a sublayer's output", "rms, of summed losses"),
}


def write_results(grid: RunGrid, results: Results) -> dict[str, Any]:
    """Write everything to `folder`/report; what `results.json` holds, and the paths of page and pictures.

    Raises Refused where that cannot be written.
    """
    output = grid.folder / "report"
    sections = ablation_sections(grid, results)
    title = f"Ablation {grid.path.stem}"
    made, place = time.strftime("%Y-%m-%d %H:%M:%S %Z"), os.path.relpath(grid.folder)
    introduction = f"Made {made} by `attnres ablate {grid.path}` from the runs in {place}."
    page, pictures = write_sections(output, title, introduction, sections)
    found = results_json(grid, results)
    try:
        (output / "results.md").write_text(markdown(title, introduction, sections), encoding="utf-8")
        (output / "results.json").write_text(dumps(found, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise refuse(str(output), what, "make space, or choose another folder") from error
    return found | {"page": str(page), "pictures": [str(path) for path in pictures]}


def results_json(grid: RunGrid, results: Results) -> dict[str, Any]:
    """Losses in nats a token, compute in model FLOPs. A loss may be NaN; it is written as `strict_json` does."""
    return {
        "reference": grid.reference,
        "confidence": CONFIDENCE,
        "cells": [asdict(cell) for cell in results.cells],
        "curves": [
            {"case": case, "setting": setting, "seed": one.seed, **asdict(one.curve)}
            for (case, setting), runs in results.finished.items()
            for one in runs
            if one.curve is not None
        ],
        "unfinished": list(results.unfinished),
    }


def ablation_sections(grid: RunGrid, results: Results) -> list[Section]:
    """The tables over all settings, the loss, then the depth."""
    tables = [loss_table(grid, results.cells), cost_table(grid, results.cells), size_table(results.cells)]
    notes = [[cell.case, cell.setting or NOT_THERE, words] for cell in results.cells for words in cell.notes]
    tables += [Table(["case", "setting", "left out"], notes)] if notes else []
    unfinished = [[words] for words in results.unfinished]
    tables += [Table(["not finished, left out"], unfinished)] if unfinished else []
    losses = [*filter(None, (_curves_chart(grid, results, number) for number in range(len(grid.settings))))]
    losses += [chart] if (chart := _final_chart(grid, results.cells)) is not None else []
    shaded = f"Bands are {CONFIDENCE:.0%} confidence intervals of the mean over seeds (Student's t); one seed has none."
    by_depth = [item for number in range(len(grid.settings)) for item in _depth_items(grid, results.cells, number)]
    depth = "Geometric means over seeds at the last look. Circles are attention, squares MLPs, the diamond is the head."
    return [
        Section("Results", how_to_read(grid), tables),
        Section("Loss against compute", shaded, losses),
        Section("By depth", f"{depth} {shaded}", by_depth),
        Section("Settings", f"Base: {grid.base}. What the grid sets over it, by case:", [settings_table(grid)]),
    ]


def markdown(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """Texts and tables; figures are named by their PNG."""
    lines = [f"# {title}", "", introduction]
    for section in sections:
        lines += ["", f"## {section.title}", "", section.text]
        for item in section.items:
            lines.append("")
            if isinstance(item, Table):
                lines += [*([item.note, ""] if item.note else []), *_markdown_table(item)]
            else:
                lines.append(f"![{item.title}]({item.name}.png)")
    return "\n".join(lines) + "\n"


def _curves_chart(grid: RunGrid, results: Results, number: int) -> Chart | None:
    """Mean validation loss over the seeds that were evaluated at the same compute."""
    setting = grid.settings[number]
    series = []
    for position, case in enumerate(grid.cases):
        by_compute: dict[float, list[float]] = {}
        for one in results.finished.get((case, setting), ()):
            if one.curve is not None:
                for compute, loss in zip(one.curve.compute, one.curve.losses, strict=True):
                    # What ran with another speed tells its FLOPs a token with another last digit.
                    by_compute.setdefault(float(f"{compute:.6g}"), []).append(loss)
        if by_compute:
            points = sorted(by_compute)
            series.append(_band(case, points, [estimate(by_compute[x]) for x in points], position))
    title = f"Validation loss{_in(setting)}"
    x, y = "compute (model FLOPs)", "loss (nats a token)"
    return Chart(f"loss-{number + 1}", title, x, y, series, x_log=True) if series else None


def _final_chart(grid: RunGrid, cells: Sequence[Cell]) -> Chart | None:
    """The ends of the runs, a point a setting; only where settings differ in compute."""
    series = []
    for position, case in enumerate(grid.cases):
        points = sorted(
            (cell.model_flops, cell.setting, cell.loss)
            for cell in cells
            if cell.case == case and cell.model_flops is not None and cell.loss is not None
        )
        if len({flops for flops, _, _ in points}) > 1:
            series.append(_band(case, [x for x, _, _ in points], [loss for _, _, loss in points], position))
    title, x, y = "Validation loss at the end, all settings", "compute of a run (model FLOPs)", "loss (nats a token)"
    return Chart("loss-at-the-end", title, x, y, series, x_log=True) if series else None


def _depth_items(grid: RunGrid, cells: Sequence[Cell], number: int) -> Iterator[Chart | Table]:
    setting = grid.settings[number]
    here = [cell for cell in cells if cell.setting == setting]
    for size, (title, unit) in _SIZES.items():
        readers = list(dict.fromkeys(reader for cell in here for reader in cell.by_depth[size]))
        if not readers:
            continue
        shown = [cell for cell in here if cell.by_depth[size]]
        series = [_along(cell, size, grid.cases.index(cell.case)) for cell in shown]
        name = f"depth-{number + 1}-{size.replace('_', '-')}"
        yield by_depth_chart(name, f"{title}{_in(setting)}", unit, True, series)
        rows = [[r, *(interval(cell.by_depth[size].get(r), "3g") for cell in shown)] for r in readers]
        head = ["reader", *(cell.case for cell in shown)]
        yield Table(head, rows, range(1, len(head)), f"{title}{_in(setting)}, {unit}", folded=True)


def _along(cell: Cell, size: str, position: int) -> Series:
    readers = cell.by_depth[size]
    one = _band(cell.case, list(range(len(readers))), list(readers.values()), position)
    return Series(one.label, one.x, one.y, one.colour, "points", [reader_kind(r) for r in readers], one.low, one.high)


def _band(label: str, x: Sequence[float], estimates: Sequence[Estimate], position: int) -> Series:
    means = np.array([one.mean for one in estimates])
    low = np.array([one.mean if one.low is None else one.low for one in estimates])
    high = np.array([one.mean if one.high is None else one.high for one in estimates])
    edges = (low, high) if any(one.n > 1 for one in estimates) else (None, None)
    return Series(label, np.array(x, dtype=np.float64), means, colour_of(position), "points", None, *edges)


def _markdown_table(table: Table) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    marks = ["---:" if column in set(table.numbers) else "---" for column in range(len(table.head))]
    return [row(table.head), row(marks), *map(row, table.rows)]


def _in(setting: str) -> str:
    return f", {setting}" if setting else ""
