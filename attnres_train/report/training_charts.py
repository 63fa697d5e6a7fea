"""Charts of loss, optimization, speed, memory and wire, of several runs beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from attnres_train.observe.tags import PHASES
from attnres_train.report.charts import PHASE_COLOURS, Chart, Section, Series, Style, both_in_legend, colour_of
from attnres_train.report.curves import (
    FEWEST_SMOOTHED,
    Curve,
    Numbers,
    mean_by_stretch,
    smoothed,
    smoothing_span,
    thinned,
)
from attnres_train.report.facts import flops_per_token
from attnres_train.report.run_folder import RunFiles

MOST_POINTS = 1500
"""Of one curve on the page."""
_MOST_SMOOTHED = 500
_MOST_AREAS = 300
_STEP = "step"
Axis = Callable[[Curve], Numbers | None]


def shared_span(runs: Sequence[RunFiles]) -> float | None:
    """Tokens that the curves of all `runs` are smoothed over; None where they are not."""
    return smoothing_span([curve for run in runs if (curve := run.curve("loss/train")) is not None])


def loss_section(runs: Sequence[RunFiles]) -> Section:
    span = shared_span(runs)
    by_flops = [(run, flops_per_token(run)) for run in runs]
    axes: list[tuple[str, str, Sequence[Axis]]] = [
        ("steps", _STEP, [lambda curve: curve.steps] * len(runs)),
        ("tokens", "tokens", [lambda curve: curve.tokens] * len(runs)),
        ("compute", "compute (model FLOPs)", [partial(_compute, flops) for _, flops in by_flops]),
    ]
    charts, both = [], both_in_legend(len(runs))
    for name, label, x_of in axes:
        series = [one for i, run in enumerate(runs) for one in _loss_series(run, i, x_of[i], both, span)]
        charts.append(Chart(f"loss-{name}", f"Loss against {name}", label, "loss (nats a token)", series))
    bits, tag = "Validation loss in bits", "loss/valid_bits_per_byte"
    charts.append(_chart(runs, "bits", bits, "bits a byte", tag, "points", from_zero=False))
    charts += _by_name(runs, "valid", "Validation loss", "nats a token", "loss/valid", "points", None)
    charts += _by_name(runs, "valid-bits", "Validation loss in bits", "bits a byte", tag, "points", None)
    charts += _by_name(runs, "train", "Training loss", "nats a token", "loss/train", "pale", span)
    text = "Solid: training loss, smoothed, over the pale raw one. Dashed with marks: validation loss. "
    lost = [run.label for run, flops in by_flops if flops is None]
    text += f"Without compute, for neither metrics nor configuration tell it: {', '.join(lost)}. " if lost else ""
    return Section("Loss", text + thinning_note(runs, span), list(_filled(charts)))


def optimization_section(runs: Sequence[RunFiles]) -> Section:
    norm, span = "optim/grad_norm", shared_span(runs)
    charts = [
        _chart(runs, "learning-rate", "Learning rate", "learning rate", "optim/lr"),
        _chart(runs, "gradient-norm", "Gradient norm", "norm before clipping", norm, "pale", y_log=True, span=span),
        _chart(runs, "skipped-steps", "Skipped steps", "steps skipped so far", "optim/skipped_steps"),
    ]
    text = "The gradient norm is that of the whole model before clipping, smoothed over the pale raw one."
    return Section("Optimization", text, list(_filled(charts)))


def speed_section(runs: Sequence[RunFiles]) -> Section:
    rate, flops = "throughput/tokens_per_second", "throughput/model_tflops_per_device"
    span = shared_span(runs)
    charts = [
        _chart(runs, "tokens-per-second", "Tokens a second, all devices", "tokens/s", rate, "pale", span=span),
        _chart(runs, "tflops-per-device", "Model FLOPs a second and device", "TFLOP/s", flops, "pale", span=span),
        *(chart for i, run in enumerate(runs) if (chart := _phases(run, i)) is not None),
        _chart(runs, "checkpoint", "Wait for a checkpoint to begin", "seconds", "time/checkpoint_seconds", "points"),
    ]
    text = (
        'A step\'s time by phase is a mean over the ranks; "waiting" is for neighbours in the pipeline, '
        '"other" what is in no phase. Evaluation and saving are in no step\'s time.'
    )
    return Section("Speed", text, list(_filled(charts)))


def memory_section(runs: Sequence[RunFiles]) -> Section:
    charts = [
        _chart(runs, "memory", "Peak memory of the fullest rank", "GiB", "memory/peak_gib"),
        _chart(runs, "wire-forward", "Sent forward in a step", "MiB", "pipeline/forward_bytes", scale=2**-20),
        _chart(runs, "wire-backward", "Sent backward in a step", "MiB", "pipeline/backward_bytes", scale=2**-20),
        _chart(runs, "kept", "Depth history kept, fullest rank", "MiB", "pipeline/kept_bytes", scale=2**-20),
    ]
    return Section("Memory and wire", "What crosses the stages of the pipeline, all of them.", list(_filled(charts)))


def thinning_note(runs: Sequence[RunFiles], span: float | None) -> str:
    """What a smoothed value is, and what is not shown of the longest curve."""
    longest = max((len(curve) for run in runs for curve in run.curves.values()), default=0)
    words = ""
    if span is not None:
        words += (
            f"A smoothed value is the height of the straight line through the records of the {span:,.0f} tokens around "
            "it, so many for every run, whatever is logged of them: it does not lag. "
        )
    if longest > MOST_POINTS:
        words += (
            f"Of {longest:,} logged steps a raw curve shows at most {MOST_POINTS:,}: the smallest and the largest of "
            f"each of equal stretches; a smoothed one is drawn through {_MOST_SMOOTHED:,}."
        )
    return words


def _compute(flops: float | None, curve: Curve) -> Numbers | None:
    return None if flops is None else curve.tokens * flops


def _loss_series(run: RunFiles, number: int, x_of: Axis, both: bool, span: float | None) -> Iterator[Series]:
    colour, group = colour_of(number), "" if both else run.label
    if (curve := run.curve("loss/train")) is not None:
        yield from _raw_and_smooth(curve, f"{run.label}, training", colour, x_of, span, group)
    if (curve := run.curve("loss/valid")) is not None and (x := x_of(shown := thinned(curve, MOST_POINTS))) is not None:
        label = f"{run.label}, validation"
        yield Series(label, x, shown.values, colour, "dashed", in_legend=both, group=group)


def _raw_and_smooth(
    curve: Curve, label: str, colour: str, x_of: Axis, span: float | None, group: str = ""
) -> Iterator[Series]:
    group = group or label
    raw = thinned(curve, MOST_POINTS)
    x = x_of(raw)
    if x is None:
        return
    if span is None or len(curve) < FEWEST_SMOOTHED:
        yield Series(label, x, raw.values, colour, group=group)
        return
    yield Series(f"{label}, raw", x, raw.values, colour, "pale", in_legend=False, group=group)
    smooth = smoothed(curve, span, _MOST_SMOOTHED)
    smooth_x = x_of(smooth)
    if smooth_x is not None:
        yield Series(label, smooth_x, smooth.values, colour, group=group)


def _chart(
    runs: Sequence[RunFiles],
    name: str,
    title: str,
    unit: str,
    tag: str,
    style: Style = "line",
    *,
    y_log: bool = False,
    from_zero: bool = True,
    scale: float = 1.0,
    span: float | None = None,
) -> Chart:
    """One tag of every run against steps; `pale` is smoothed too, over `span` tokens."""
    curves = [(run.label, curve.times(scale), i) for i, run in enumerate(runs) if (curve := run.curve(tag)) is not None]
    series = _against_steps(curves, style, span)
    return Chart(name, title, _STEP, unit, series, y_log=y_log, from_zero=from_zero and not y_log)


def _by_name(
    runs: Sequence[RunFiles], name: str, title: str, unit: str, tag: str, style: Style, span: float | None
) -> Iterator[Chart]:
    """`TAG/NAME`: of one run all names in one chart, of several runs a chart a name."""
    names = list(dict.fromkeys(part for run in runs for part in run.parts(tag)))
    if len(runs) == 1 and names:
        curves = [(part, curve, i) for i, (part, curve) in enumerate(runs[0].parts(tag).items())]
        yield Chart(f"{name}-by-name", f"{title} by name", _STEP, unit, _against_steps(curves, style, span))
        return
    for number, part in enumerate(names):
        curves = [(run.label, curve, i) for i, run in enumerate(runs) if (curve := run.parts(tag).get(part))]
        series = _against_steps(curves, style, span)
        yield Chart(f"{name}-{number + 1}", f"{title}: {part}", _STEP, unit, series)


def _against_steps(curves: Sequence[tuple[str, Curve, int]], style: Style, span: float | None) -> list[Series]:
    """Each with its label and the number of its colour."""
    series: list[Series] = []
    for label, curve, number in curves:
        if style == "pale":
            series += _raw_and_smooth(curve, label, colour_of(number), lambda curve: curve.steps, span)
        else:
            shown = thinned(curve, MOST_POINTS)
            series.append(Series(label, shown.steps, shown.values, colour_of(number), style))
    return series


def _phases(run: RunFiles, number: int) -> Chart | None:
    """Seconds of a step by phase, on each other; what no phase accounts for lies on top."""
    whole = run.curve("time/step_seconds")
    phases = {phase: curve for phase in PHASES if (curve := run.curve(f"time/{phase}_seconds")) is not None}
    if whole is None or not phases:
        return None
    steps = whole.steps
    for curve in phases.values():
        steps = np.intersect1d(steps, curve.steps)
    if not len(steps):
        return None
    parts = {name: curve.take(np.searchsorted(curve.steps, steps)) for name, curve in phases.items()}
    known = np.sum([curve.values for curve in parts.values()], axis=0)
    all_of_it = whole.take(np.searchsorted(whole.steps, steps))
    parts["other"] = replace(all_of_it, values=np.maximum(all_of_it.values - known, 0.0))
    shown = {name: mean_by_stretch(curve, _MOST_AREAS) for name, curve in parts.items()}
    series = [
        Series(name, curve.steps, curve.values, PHASE_COLOURS[(*PHASES, "other").index(name)], "area")
        for name, curve in shown.items()
    ]
    note = f"Means of {len(steps) / _MOST_AREAS:.2g} logged steps each." if len(steps) > _MOST_AREAS else ""
    return Chart(f"phases-{number + 1}", f"A step's time by phase: {run.label}", _STEP, "seconds a step", series, note)


def _filled(charts: Sequence[Chart]) -> Iterator[Chart]:
    """Those that have something to show."""
    yield from (chart for chart in charts if any(np.isfinite(series.y).any() for series in chart.series))
