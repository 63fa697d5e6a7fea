"""Advice as a page, and as the object that `attnres plan --advise --json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from attnres_train.plan.advise import Advice, AdvisedLayout, Layout
from attnres_train.plan.page import page_table
from attnres_train.plan.text import as_json
from attnres_train.words import GIB, counted


def advice_text(advice: Advice, title: str) -> str:
    """The best layouts with what each takes, how to ask for them, and a table of the reasons that refused others."""
    machine = advice.machine
    others = f" and stand for {advice.implied} that only make more again" if advice.implied else ""
    found = f"{counted(advice.tried, 'layout')} tried, {advice.runnable} can run{others}; the fastest:"
    lines = [title, "", f"  {advice.world} x {machine.name}: {found}", ""]
    if advice.choices:
        cells = [_cells(choice) for choice in advice.choices]
        rows = [(str(number), *row.values()) for number, row in enumerate(cells, 1)]
        lines += page_table([("", *cells[0]), *rows], right=range(11))
        asked = [(f"{n}:", choice.overrides or "as in the file") for n, choice in enumerate(advice.choices, 1)]
        lines += ["", *page_table(asked), "", *page_table(_MEANING)]
    else:
        lines += ["  none"]
    lines += ["", *page_table([("measured" if machine.measured else "assumed", machine.assumptions)])]
    if advice.refused:
        reasons = [(f"{r.number:,}", _short(r.layout), r.words) for r in advice.refused]
        lines += ["", *page_table([("refused", "for instance", "because"), *reasons], right=(0,))]
    return "\n".join(lines)


_MEANING = (
    ("micro", "samples of a micro-batch"),
    ("again", "training.recompute, what backward makes again"),
    ("bubble", "of the schedule's time, all ranks together wait for work or for messages"),
    ("GiB", "tensors on the fullest rank"),
    ("wire GiB", "between pipeline stages in a step, over all ranks and both ways"),
)


def _cells(choice: AdvisedLayout) -> dict[str, str]:
    """Of a row of the table, by column."""
    layout, plan, time = choice.layout, choice.plan, choice.plan.time
    assert time is not None, "advice is for a machine"
    return {
        **{name: str(getattr(layout, name)) for name in ("tensor", "pipeline", "virtual", "data")},
        "micro": str(layout.micro_batch_size),
        "again": layout.recompute + _zero(layout),
        "step s": f"{time.step_seconds:.3g}",
        "tokens/s": f"{time.tokens_per_second:,.0f}",
        "bubble %": f"{100 * time.bubble_fraction:.1f}",
        "GiB": f"{plan.memory.total / GIB:,.3g}",
        "wire GiB": f"{plan.wire.step_bytes / GIB:,.3g}",
    }


def _short(layout: Layout) -> str:
    virtual = f" x virtual {layout.virtual}" if layout.virtual > 1 else ""
    grid = f"tensor {layout.tensor}, pipeline {layout.pipeline}{virtual}, data {layout.data}"
    return f"{grid}, micro {layout.micro_batch_size}{_zero(layout)}"


def _zero(layout: Layout) -> str:
    return f", ZeRO-{layout.zero}" if layout.zero else ""


def advice_json(advice: Advice) -> dict[str, Any]:
    """Everything of the page, with seconds by kind and memory by kind."""
    return {
        "world": advice.world,
        "device": advice.machine.name,
        "assumptions": advice.machine.assumptions,
        "tried": advice.tried,
        "runnable": advice.runnable,
        "implied": advice.implied,
        "layouts": [_choice_json(choice) for choice in advice.choices],
        "refused": [{"count": r.number, "reason": r.words, "example": asdict(r.layout)} for r in advice.refused],
    }


def _choice_json(choice: AdvisedLayout) -> dict[str, Any]:
    found = as_json(choice.plan)
    time = ("step_seconds", "tokens_per_second", "model_flops_utilisation", "bubble_fraction", "kinds_seconds")
    return {
        **asdict(choice.layout),
        "overrides": choice.overrides,
        **{name: found["time"][name] for name in time},
        "memory_gib": found["memory_gib"],
        "wire_bytes": choice.plan.wire.step_bytes,
    }
