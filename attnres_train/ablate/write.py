"""The report of a grid: a page, PNGs, `results.md` and `results.json`, all of the same tables and charts."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from attnres_train.ablate.grid import Grid
from attnres_train.ablate.results import Cell, Results
from attnres_train.ablate.statistics import CONFIDENCE, Estimate, estimate
from attnres_train.errors import refuse
from attnres_train.report.charts import Chart, Section, Series, Table, colour_of, kind_of
from attnres_train.report.depth_charts import by_depth_chart
from attnres_train.report.facts import NOT_THERE
from attnres_train.report.write import write_sections

_SIZES = {
    "partial_rms": ("Running sum after a sublayer", "rms"),
    "output_rms": ("Output of a sublayer", "rms"),
    "input_rms": ("Input of a sublayer", "rms before its norm"),
    "gradient_rms": ("Gradient of a sublayer's output", "rms, of summed losses"),
}


def write_results(grid: Grid, results: Results) -> dict[str, Any]:
    """Write everything to `folder`/report; what `results.json` holds.

    Raises Refused where that cannot be written.
    """
    output = grid.folder / "report"
    sections = sections_of(grid, results)
    title = f"Ablation {grid.path.stem}"
    introduction = f"Made {time.strftime('%Y-%m-%d %H:%M:%S %Z')} from the runs in {grid.folder}."
    page, pictures = write_sections(output, title, introduction, sections)
    found = as_json(grid, results)
    found |= {"page": str(page), "pictures": [str(path) for path in pictures]}
    try:
        (output / "results.md").write_text(markdown(title, introduction, sections), encoding="utf-8")
        (output / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise refuse(
            str(output), f"cannot be written: {error.strerror}", "make space, or choose another folder"
        ) from error
    return found


def as_json(grid: Grid, results: Results) -> dict[str, Any]:
    """Losses in nats a token, compute in model FLOPs. A loss that is not finite is null: JSON has no word for it."""
    return {
        "reference": grid.reference,
        "confidence": CONFIDENCE,
        "cells": [asdict(cell) for cell in results.cells],
        "curves": [
            {
                **{"case": case, "setting": setting, "seed": one.seed, "compute": list(one.curve.compute)},
                "losses": [loss if math.isfinite(loss) else None for loss in one.curve.losses],
            }
            for (case, setting), runs in results.finished.items()
            for one in runs
            if one.curve is not None
        ],
        "unfinished": list(results.unfinished),
    }


def sections_of(grid: Grid, results: Results) -> list[Section]:
    """The tables over all settings, the loss, then the depth."""
    tables = [_loss_table(grid, results.cells), _cost_table(grid, results.cells), _size_table(results.cells)]
    notes = [[cell.case, cell.setting or NOT_THERE, words] for cell in results.cells for words in cell.notes]
    if notes:
        tables.append(Table(["case", "setting", "left out"], notes))
    if results.unfinished:
        tables.append(Table(["not finished, left out"], [[words] for words in results.unfinished]))
    losses = [*filter(None, (_curves_chart(grid, results, number) for number in range(len(grid.settings))))]
    losses += [chart] if (chart := _final_chart(grid, results.cells)) is not None else []
    shaded = f"Bands are {CONFIDENCE:.0%} confidence intervals of the mean over seeds (Student's t); one seed has none."
    by_depth = [item for number in range(len(grid.settings)) for item in _depth_items(grid, results.cells, number)]
    depth = "Means over seeds at the last look. Circles are attention, squares MLPs, the diamond is the head."
    return [
        Section("Results", _how(grid), tables),
        Section("Loss against compute", shaded, losses),
        Section("By depth", f"{depth} {shaded}", by_depth),
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


def _how(grid: Grid) -> str:
    return (
        f"± is half of the {CONFIDENCE:.0%} confidence interval of a mean over n seeds (Student's t); one has none. "
        f"Compute advantage: how many times the compute {grid.reference} needs to come to the same loss, the worse of "
        "the two last ones; read off the validation curves while they fall, between evaluations linear in loss and in "
        "log compute, and never beyond their ends; pairs share a seed, the mean is geometric, with its interval. It "
        "compares points within runs of one schedule, not the ends of runs of several lengths: where the learning rate "
        "decays at the end, it says less than a scaling law would."
    )


def _loss_table(grid: Grid, cells: Sequence[Cell]) -> Table:
    head = [
        *("setting", "case", "n", "model FLOPs a run", "validation loss (nats a token)"),
        *(f"over {grid.reference}", "n of pairs", f"compute advantage over {grid.reference}", "n of advantages"),
    ]
    rows = [
        [
            *(cell.setting or NOT_THERE, cell.case, str(len(cell.seeds))),
            NOT_THERE if cell.model_flops is None else f"{cell.model_flops:.3g}",
            _plus_minus(cell.loss, "4f"),
            *(_plus_minus(cell.loss_over_reference, "+.4f"), _n(cell.loss_over_reference)),
            *(_range(cell.advantage), _n(cell.advantage)),
        ]
        for cell in cells
    ]
    return Table(head, rows, numbers=range(2, len(head)))


def _cost_table(grid: Grid, cells: Sequence[Cell]) -> Table:
    head = ["setting", "case", "depth FLOPs over model FLOPs", f"step time over {grid.reference}", "n of pairs"]
    rows = [
        [
            *(cell.setting or NOT_THERE, cell.case),
            NOT_THERE if cell.depth_flops_share is None else f"{100 * cell.depth_flops_share:.2f} %",
            *(_range(cell.step_time_over_reference), _n(cell.step_time_over_reference)),
        ]
        for cell in cells
    ]
    note = (
        "What compute does not count: model FLOPs leave out scores and mixes of the depth. Step times are medians, as "
        "measured, of whatever ran beside them:"
    )
    return Table(head, rows, numbers=range(2, len(head)), note=note)


def _size_table(cells: Sequence[Cell]) -> Table:
    head = ["setting", "case", "partial, last over first", "gradient, largest over smallest"]
    rows = [
        [
            cell.setting or NOT_THERE,
            cell.case,
            _plus_minus(cell.partial_growth, "3g"),
            _plus_minus(cell.gradient_spread, "3g"),
        ]
        for cell in cells
    ]
    return Table(head, rows, numbers=(2, 3), note="By depth, at the last look:")


def _curves_chart(grid: Grid, results: Results, number: int) -> Chart | None:
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


def _final_chart(grid: Grid, cells: Sequence[Cell]) -> Chart | None:
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


def _depth_items(grid: Grid, cells: Sequence[Cell], number: int) -> Iterator[Chart | Table]:
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
        rows = [[r, *(_plus_minus(cell.by_depth[size].get(r), "3g") for cell in shown)] for r in readers]
        head = ["reader", *(cell.case for cell in shown)]
        yield Table(head, rows, range(1, len(head)), f"{title}{_in(setting)}, {unit}", folded=True)


def _along(cell: Cell, size: str, position: int) -> Series:
    readers = cell.by_depth[size]
    one = _band(cell.case, list(range(len(readers))), list(readers.values()), position)
    return Series(one.label, one.x, one.y, one.colour, "points", [kind_of(r) for r in readers], one.low, one.high)


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


def _plus_minus(one: Estimate | None, form: str) -> str:
    if one is None:
        return NOT_THERE
    form = form if form[0] == "+" else f".{form}"
    half = "" if one.high is None else f" ± {format(one.high - one.mean, form.lstrip('+'))}"
    return format(one.mean, form) + half


def _range(one: Estimate | None) -> str:
    if one is None:
        return NOT_THERE
    return f"{one.mean:.3f}" + ("" if one.low is None else f" ({one.low:.3f} to {one.high:.3f})")


def _n(one: Estimate | None) -> str:
    return NOT_THERE if one is None else str(one.n)


def _in(setting: str) -> str:
    return f", {setting}" if setting else ""
