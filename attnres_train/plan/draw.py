"""A picture of a step: one row a rank, a box a turn in simulated time, and every crossing with its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnres_train.errors import refuse
from attnres_train.plan.simulate import Box, Message, Played
from attnres_train.plan.timing import Timing
from attnres_train.plan.whole import Plan
from attnres_train.words import MIB, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SUFFIXES = (".png", ".svg", ".pdf")
_MOST_RANKS, _MOST_MICRO_BATCHES = 16, 8
"""Of a picture that can be read; a longer step shows its first micro-batches, as a step of its own."""
_LABELLED_BOXES = 160
_LABEL_SHARE = 0.045
"""Of the step that the label of a crossing is wide; a crossing so close to another's label has none."""
_FORWARD = ("#9cc4e4", "#6fa8d6", "#4a8cc4", "#2f6fa8", "#225a8c", "#174670", "#0e3354", "#08233b")
_BACKWARD = ("#f6c59a", "#f0a766", "#e58a3c", "#cc701f", "#a85a14", "#86460d", "#643308", "#452304")
_TO_NEXT, _BACK = "#1b5e3a", "#7a2f6b"


def check_picture(output: Path) -> None:
    """Raises Refused for a path that no picture can have, before anything is worked out."""
    if output.is_dir():
        raise refuse("--draw", f"{output} is a folder", f"write {output / 'schedule.png'}")
    if output.suffix.lower() not in _SUFFIXES:
        what = f"{output} does not end in {' or '.join(_SUFFIXES)}"
        raise refuse("--draw", what, f"write {output.with_suffix('.png')}")
    if not output.parent.is_dir():
        raise refuse("--draw", f"there is no folder {output.parent}", "make it, or name a file in another")


def draw_schedule(plan: Plan, output: Path) -> None:
    """Draw `plan`, which has a machine, into `output`. Where micro-batches are many the first few are played alone.

    Raises Refused for more ranks than can be told apart.
    """
    setup, ranks = plan.setup, plan.setup.wire.pipeline
    if ranks > _MOST_RANKS:
        what = f"{ranks} pipeline ranks are more than the {_MOST_RANKS} rows of a picture"
        raise refuse("--draw", what, f"plan with --parallel.pipeline {_MOST_RANKS} or less to see its shape")
    assert plan.machine is not None, "the command line asks for a device"
    group = max(setup.schedule.group_size, 1)
    count = min(setup.micro_batches, max(group, _MOST_MICRO_BATCHES // group * group))
    _draw(plan, Timing(setup, plan.machine).played_whole(count), count, output)


def _draw(plan: Plan, played: Played, count: int, output: Path) -> None:
    from matplotlib.figure import Figure

    setup, ranks = plan.setup, plan.setup.wire.pipeline
    figure = Figure(figsize=(15, 2.6 + 0.95 * ranks + 0.16 * max(0, len(plan.stages) - 1)), layout="constrained")
    steps, bars = figure.subplots(2, 1, height_ratios=[1.2 + 0.95 * ranks, 1.2 + 0.16 * len(plan.stages)])
    unit, name = (1e3, "ms") if played.seconds < 1 else (1.0, "s")
    _draw_boxes(steps, played.boxes, unit, setup.wire.virtual)
    _draw_messages(steps, plan, played.messages, unit)
    shown = "" if count == setup.micro_batches else f", the first {count} of {setup.micro_batches} micro-batches alone"
    layers, machine = counted(setup.layout.num_sublayers // 2, "layer"), plan.machine.name if plan.machine else ""
    grid = f"pipeline {ranks} x virtual {setup.wire.virtual} on {setup.world} x {machine}"
    wait = f"ranks wait {100 * played.bubble_fraction:.1f} % of this schedule"
    steps.set_title(f"{layers}, {setup.layout.mode}, {grid}{shown}; {wait}", fontsize=10, loc="left")
    steps.set_ylim(ranks - 0.35, -0.65)
    steps.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    steps.set_xlim(0, played.seconds * unit * 1.005)
    steps.set_xlabel(f"simulated time, {name} (a box: F or B, micro-batch; darker is a later chunk)")
    _legend(steps, setup.wire.virtual)
    _draw_hops(bars, plan)
    for axes in (steps, bars):
        axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(output, dpi=130)
    except OSError as error:
        raise refuse("--draw", f"{output} cannot be written: {error}", "name a file in a folder of yours") from error


def _draw_boxes(axes: Axes, boxes: Sequence[Box], unit: float, virtual: int) -> None:
    labels = len(boxes) <= _LABELLED_BOXES
    for box in boxes:
        chunk, forward = box.turn.visit.chunk, box.turn.forward
        colours = _FORWARD if forward else _BACKWARD
        colour = colours[min(chunk, len(colours) - 1)]
        start, width = box.start * unit, (box.end - box.start) * unit
        axes.broken_barh([(start, width)], (box.rank - 0.27, 0.54), facecolor=colour, edgecolor="white", linewidth=0.6)
        if labels:
            text, ink = f"{'F' if forward else 'B'}{box.turn.visit.micro_batch}", "white" if chunk >= 3 else "black"
            where: dict[str, Any] = {"ha": "center", "va": "center", "clip_on": True}
            axes.text(start + width / 2, box.rank, text, fontsize=7, color=ink, **where)


def _draw_messages(axes: Axes, plan: Plan, messages: Sequence[Message], unit: float) -> None:
    """Every crossing as an arrow; the bytes of a hop stand at its first crossing of each direction that has room."""
    wire, labelled = plan.wire.plan, set[tuple[int, int]]()
    taken: dict[float, list[float]] = {}
    room = _LABEL_SHARE * unit * max((message.end for message in messages), default=0.0)
    for message in messages:
        rows = wire.rank_of(message.from_stage), wire.rank_of(message.to_stage)
        edge = 0.27 if rows[1] > rows[0] else -0.27
        ends, colour = (rows[0] + edge, rows[1] - edge), _TO_NEXT if message.forward else _BACK
        arrow: dict[str, Any] = {"arrowstyle": "->", "color": colour, "linewidth": 0.7, "alpha": 0.55}
        hop, gap, end = (message.from_stage, message.to_stage), sum(rows) / 2, message.end * unit
        axes.annotate("", xy=(end, ends[1]), xytext=(message.start * unit, ends[0]), arrowprops=arrow)
        free = all(abs(end - other) > room for other in taken.get(gap, []))
        if hop not in labelled and free and abs(rows[1] - rows[0]) == 1:
            labelled.add(hop)
            taken.setdefault(gap, []).append(end)
            slices = wire.hop_into(max(hop))
            size = (slices.slices if message.forward else slices.slices_back) * plan.wire.slice_bytes
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6}
            axes.text(end, sum(ends) / 2, f" {_mib(size)}", fontsize=6.5, color=colour, va="center", bbox=box)


def _legend(axes: Axes, virtual: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    chunks = [f", chunk {chunk}" for chunk in range(min(virtual, len(_FORWARD)))] if virtual > 1 else [""]
    entries: list[Any] = []
    for name, colours in (("forward", _FORWARD), ("backward", _BACKWARD)):
        entries += [Patch(color=colour, label=f"{name}{of}") for colour, of in zip(colours, chunks, strict=False)]
    entries += [Line2D([], [], color=_TO_NEXT, label="history to the next stage")]
    entries += [Line2D([], [], color=_BACK, label="gradients back")]
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.06)}
    axes.legend(handles=entries, ncols=min(len(entries), 10), frameon=False, fontsize=7.5, **place)


def _draw_hops(axes: Axes, plan: Plan) -> None:
    """What one micro-batch sends over each hop, both ways, beside the one slice of the standard residual."""
    hops, size = plan.wire.plan.hops(), plan.wire.slice_bytes / MIB
    rows = range(len(hops))
    for offset, slices, colour, label in (
        (-0.2, [hop.slices for hop in hops], _TO_NEXT, "history forward"),
        (0.2, [hop.slices_back for hop in hops], _BACK, "gradients back"),
    ):
        bars = axes.barh([r + offset for r in rows], [n * size for n in slices], 0.36, color=colour, label=label)
        axes.bar_label(bars, [_mib(n * plan.wire.slice_bytes) for n in slices], fontsize=5.5, padding=2)
    if hops:
        standard = f"standard residual, {_mib(plan.wire.slice_bytes)}"
        axes.axvline(size, color="black", linestyle="--", linewidth=1, label=standard)
        axes.legend(frameon=False, fontsize=7.5, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    axes.set_yticks(list(rows), [f"{hop.from_stage} -> {hop.to_stage}" for hop in hops], fontsize=7)
    axes.set_ylabel("stages of the hop", labelpad=10)
    axes.set_xlabel("MiB a micro-batch over the hop, on one tensor rank")
    axes.invert_yaxis()


def _mib(size: float) -> str:
    return f"{size / MIB:.3g} MiB" if size >= 0.1 * MIB else f"{size / 1024:.3g} KiB"
