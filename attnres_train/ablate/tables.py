"""The tables of an ablation, as plain text in cells."""

from __future__ import annotations

from collections.abc import Sequence

from attnres_train.ablate.grid import PER_RUN, RunGrid
from attnres_train.ablate.results import Cell
from attnres_train.ablate.statistics import CONFIDENCE, Estimate
from attnres_train.report.charts import Table
from attnres_train.report.facts import NOT_THERE


def how_to_read(grid: RunGrid) -> str:
    return (
        f"± is half of the {CONFIDENCE:.0%} confidence interval of a mean over n seeds (Student's t), and (A to B) are "
        "the edges of that of a geometric mean; one seed has none. "
        f"Compute advantage: how many times the compute {grid.reference} needs to come to the same loss, the worse of "
        "the two last ones; read off the validation curves while they fall, between evaluations linear in loss and in "
        "log compute, and never beyond their ends; pairs share a seed, the mean is geometric, with its interval. It "
        "compares points within runs of one schedule, not the ends of runs of several lengths: where the learning rate "
        "decays at the end, it says less than a scaling law would."
    )


def loss_table(grid: RunGrid, cells: Sequence[Cell]) -> Table:
    rows = [
        {
            **_named(cell),
            "n": str(len(cell.seeds)),
            "model FLOPs a run": NOT_THERE if cell.model_flops is None else f"{cell.model_flops:.3g}",
            "validation loss (nats a token)": _plus_minus(cell.loss, "4f"),
            f"over {grid.reference}": _plus_minus(cell.loss_over_reference, "+.4f"),
            "n of pairs": _n(cell.loss_over_reference),
            f"compute advantage over {grid.reference}": interval(cell.advantage, "3f"),
            "n of advantages": _n(cell.advantage),
        }
        for cell in cells
    ]
    return Table.of(rows, 2)


def cost_table(grid: RunGrid, cells: Sequence[Cell]) -> Table:
    rows = [
        {
            **_named(cell),
            "parameters": NOT_THERE if cell.parameters is None else f"{cell.parameters:,}",
            "depth FLOPs over model FLOPs": _percent(cell.depth_flops_share),
            f"step time over {grid.reference}": interval(cell.step_time_over_reference, "3f"),
            "n of pairs": _n(cell.step_time_over_reference),
        }
        for cell in cells
    ]
    note = (
        "What compute does not count: model FLOPs leave out scores and mixes of the depth. Step times are medians, as "
        "measured, of whatever ran beside them:"
    )
    return Table.of(rows, 2, note)


def size_table(cells: Sequence[Cell]) -> Table:
    growth, spread = "partial, last over first", "gradient, largest over smallest"
    rows = [
        {**_named(cell), growth: interval(cell.partial_growth, "3g"), spread: interval(cell.gradient_spread, "3g")}
        for cell in cells
    ]
    return Table.of(rows, 2, "By depth, at the last look:")


def _named(cell: Cell) -> dict[str, str]:
    return {"setting": cell.setting or NOT_THERE, "case": cell.case}


def _percent(share: float | None) -> str:
    return NOT_THERE if share is None else f"{100 * share:.2f} %"


def settings_table(grid: RunGrid) -> Table:
    """Values of several settings or seeds are told one after the other."""
    rows = []
    for key in dict.fromkeys(key for run in grid.runs for key in run.values if key not in PER_RUN):
        values = [
            dict.fromkeys(str(run.values[key]) for run in grid.runs if run.case == case and key in run.values)
            for case in grid.cases
        ]
        rows.append([key, *(", ".join(of_case) or NOT_THERE for of_case in values)])
    return Table(["key", *grid.cases], rows)


def _plus_minus(one: Estimate | None, form: str) -> str:
    if one is None:
        return NOT_THERE
    form = form if form[0] == "+" else f".{form}"
    half = "" if one.high is None else f" ± {format(one.high - one.mean, form.lstrip('+'))}"
    return format(one.mean, form) + half


def interval(one: Estimate | None, form: str) -> str:
    """A mean and the edges of its interval, which need not be equally far."""
    if one is None:
        return NOT_THERE
    edges = "" if one.low is None else f" ({format(one.low, f'.{form}')} to {format(one.high, f'.{form}')})"
    return format(one.mean, f".{form}") + edges


def _n(one: Estimate | None) -> str:
    return NOT_THERE if one is None else str(one.n)
