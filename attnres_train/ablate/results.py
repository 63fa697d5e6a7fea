"""What a grid has found, by case and setting: losses, compute at equal loss, sizes by depth."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnres_train.ablate.grid import RunGrid, logs_folder
from attnres_train.ablate.state import why_another
from attnres_train.ablate.statistics import Estimate, OutsideOfCurve, compute_advantage, estimate, ratio_estimate
from attnres_train.model.size import depth_flops_per_token
from attnres_train.observe.depth_look import SIZES
from attnres_train.report.depth_charts import profile
from attnres_train.report.facts import flops_per_token, gradient_spread, parameters, partial_growth, run_config
from attnres_train.report.run_folder import RunFiles, read_run
from attnres_train.words import counted


@dataclass(frozen=True)
class LossCurve:
    """Validation losses (nats a token) after `compute` model FLOPs."""

    compute: Sequence[float]
    losses: Sequence[float]


@dataclass(frozen=True)
class Finished:
    """A run that reached its last step. `curve` is None where nothing was evaluated there, or compute is not known."""

    seed: int
    run: RunFiles
    curve: LossCurve | None


@dataclass(frozen=True)
class Cell:
    """One case in one setting. Intervals are over seeds; None where there is nothing to say, which `notes` explain."""

    case: str
    setting: str
    seeds: Sequence[int]
    """Of runs that are finished."""
    parameters: int | None
    model_flops: float | None
    """Of a whole run."""
    loss: Estimate | None
    """Validation loss at the end, in nats a token."""
    loss_over_reference: Estimate | None
    """Its difference from the reference's at the same seed."""
    advantage: Estimate | None
    """How many times the compute the reference needs for the loss that both reach; geometric mean."""
    depth_flops_share: float | None
    """FLOPs of the depth reads over the model FLOPs, which leave them out."""
    step_time_over_reference: Estimate | None
    """Ratio of median step times at the same seed; geometric mean."""
    partial_growth: Estimate | None
    gradient_spread: Estimate | None
    by_depth: Mapping[str, Mapping[str, Estimate]]
    """Size -> reader -> its geometric mean over seeds at the last look, in the units of a look at the depth."""
    notes: Sequence[str]


@dataclass(frozen=True)
class Results:
    cells: Sequence[Cell]
    finished: Mapping[tuple[str, str], Sequence[Finished]]
    """By case and setting."""
    unfinished: Sequence[str]
    """Runs that are left out, and why."""


def results_of(grid: RunGrid) -> Results:
    """What the run folders of the grid say now."""
    finished: dict[tuple[str, str], list[Finished]] = {}
    unfinished = []
    for planned in grid.runs:
        run = read_run(planned.folder, planned.name) if planned.folder.is_dir() else None
        why = "not begun" if run is None else (why_another(grid, planned) or why_unfinished(run))
        if run is None or why is not None:
            log = logs_folder(grid) / f"{planned.name}.log"
            unfinished.append(f"{planned.name}: {why}" + (f" (log: {os.path.relpath(log)})" if log.exists() else ""))
        else:
            finished.setdefault((planned.case, planned.setting), []).append(Finished(planned.seed, run, curve_of(run)))
    cells = [
        _cell(case, setting, finished.get((case, setting), []), finished.get((grid.reference, setting), []), grid)
        for setting in grid.settings
        for case in grid.cases
        if any((run.case, run.setting) == (case, setting) for run in grid.runs)
    ]
    return Results(cells, finished, unfinished)


def why_unfinished(run: RunFiles) -> str | None:
    """None for a run whose last step is logged."""
    steps = (run.config or {}).get("training.steps")
    training = run.curve("loss/train")
    if steps is None:
        return "not one step is done" if training is None else "its config.toml cannot be read"
    if training is None or training.steps[-1] < steps:
        return f"at step {0 if training is None else int(training.steps[-1])} of {steps}"
    return None


def curve_of(run: RunFiles) -> LossCurve | None:
    """The validation curve, up to the last step; None without an evaluation there.

    A loss that is not finite is left out, for no compute can be read off beside it; the last one stays: it diverged.
    """
    valid, training, flops = run.curve("loss/valid"), run.curve("loss/train"), flops_per_token(run)
    if valid is None or training is None or flops is None or valid.steps[-1] != training.steps[-1]:
        return None
    kept = np.isfinite(valid.tokens) & np.isfinite(valid.values)
    kept[-1] = True
    return LossCurve((valid.tokens[kept] * flops).tolist(), valid.values[kept].tolist())


def _cell(case: str, setting: str, own: Sequence[Finished], reference: Sequence[Finished], grid: RunGrid) -> Cell:
    curves = {one.seed: one.curve for one in own if one.curve is not None}
    # A run that diverged has no loss to be averaged; it is told and not hidden in a mean.
    diverged = [seed for seed, curve in curves.items() if not math.isfinite(curve.losses[-1])]
    notes = [f"seed {seed}: the last validation loss is not finite" for seed in diverged]
    notes += [f"seed {one.seed}: no validation loss at the last step" for one in own if one.curve is None]
    notes += [words for one in own for words in _gaps(one)]
    last = {seed: curve.losses[-1] for seed, curve in curves.items() if seed not in diverged}
    theirs = {one.seed: one.curve for one in reference if one.curve is not None}
    paired = [seed for seed in last if seed in theirs and math.isfinite(theirs[seed].losses[-1])]
    compared = case != grid.reference
    ratios = []
    for seed in paired if compared else []:
        mine, other = curves[seed], theirs[seed]
        try:
            ratios.append(compute_advantage(mine.compute, mine.losses, other.compute, other.losses))
        except OutsideOfCurve as outside:
            notes.append(f"seed {seed}: no compute at equal loss: {outside}")
    looks = [one.run.looks[-1][1] for one in own if one.run.looks]
    differences = [last[seed] - theirs[seed].losses[-1] for seed in paired] if compared else []
    flops = [curve.compute[-1] for curve in curves.values()]
    return Cell(
        case=case,
        setting=setting,
        seeds=[one.seed for one in own],
        parameters=next((count for one in own if (count := parameters(one.run)) is not None), None),
        model_flops=flops[0] if flops else None,
        loss=_estimate(list(last.values())),
        loss_over_reference=_estimate(differences),
        advantage=_of_sizes(ratios),
        depth_flops_share=next((share for one in own if (share := _depth_flops_share(one.run)) is not None), None),
        step_time_over_reference=_step_time_ratio(own, reference) if compared else None,
        partial_growth=_of_sizes([partial_growth(look) for look in looks]),
        gradient_spread=_of_sizes([gradient_spread(look) for look in looks]),
        by_depth={size: dict(_by_reader(own, size)) for size in SIZES},
        notes=notes,
    )


def _gaps(one: Finished) -> Iterator[str]:
    valid = one.run.curve("loss/valid")
    if one.curve is not None and valid is not None and (lost := len(valid) - len(one.curve.losses)):
        yield f"seed {one.seed}: {counted(lost, 'validation loss')} on the way not finite, left out of the curve"


def _depth_flops_share(run: RunFiles) -> float | None:
    config, flops = run_config(run.config), flops_per_token(run)
    return None if config is None or flops is None else depth_flops_per_token(config.model, config.residual) / flops


def _step_time_ratio(own: Sequence[Finished], reference: Sequence[Finished]) -> Estimate | None:
    ours, theirs = ({one.seed: _median_step(one.run) for one in runs} for runs in (own, reference))
    pairs = [(mine, other) for seed, mine in ours.items() if mine and (other := theirs.get(seed))]
    return _of_sizes([mine / other for mine, other in pairs])


def _median_step(run: RunFiles) -> float | None:
    curve = run.curve("time/step_seconds")
    return None if curve is None else float(np.nanmedian(curve.values))


def _by_reader(runs: Sequence[Finished], what: str) -> Iterator[tuple[str, Estimate]]:
    values: dict[str, list[float | None]] = {}
    for one in runs:
        points = profile(one.run.looks[-1][1], what) if one.run.looks else None
        if points is not None:
            for name, size in zip(points[2], points[1].tolist(), strict=True):
                values.setdefault(name, []).append(size)
    yield from ((name, mean) for name, sizes in values.items() if (mean := _of_sizes(sizes)) is not None)


def _of_sizes(values: Sequence[float | None]) -> Estimate | None:
    """The geometric mean of those that are above zero: what is drawn and compared by ratios has its interval there."""
    positive = [value for value in values if value is not None and value > 0]
    return ratio_estimate(positive) if positive else None


def _estimate(values: Sequence[float]) -> Estimate | None:
    return estimate(values) if values else None
