"""Advice as a page, and as the object that `attnres plan --advise --json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from attnres_train.plan.advise import Advice, Choice, Layout
from attnres_train.plan.text import table
from attnres_train.plan.units import GIB

_WIDEST = 92
"""Columns of a reason."""


def advice_text(advice: Advice, title: str) -> str:
    """The best layouts with what each takes, how to ask for them, and a table of the reasons that refused others."""
    machine = advice.machine
    lines = [
        title,
        "",
        f"  {advice.world} x {machine.name}: {advice.tried} layouts tried, {advice.runnable} can run; the fastest:",
        "",
    ]
    if advice.choices:
        lines += table([_HEAD, *(_row(n, c) for n, c in enumerate(advice.choices, 1))], indent=2, right=range(11))
        lines += ["", *(f"  {n}: {choice.overrides}" for n, choice in enumerate(advice.choices[:3], 1))]
    else:
        lines += ["  none"]
    lines += ["", f"  assumed: {machine.assumptions}"]
    if advice.refused:
        rows = [("refused", "for instance", "")]
        rows += [(str(r.number), _short(r.layout), _cut(r.words)) for r in advice.refused]
        lines += ["", *table(rows, indent=2, right=(0,))]
    return "\n".join(lines)


_HEAD = (
    "",
    "tensor",
    "pipeline",
    "virtual",
    "data",
    "micro",
    "again",
    "step s",
    "tokens/s",
    "bubble %",
    "GiB",
    "wire GiB",
)


def _row(number: int, choice: Choice) -> tuple[str, ...]:
    layout, time = choice.layout, choice.time
    again = layout.recompute + (f", ZeRO-{layout.zero}" if layout.zero else "")
    degrees = (layout.tensor, layout.pipeline, layout.virtual, layout.data, layout.micro_batch_size)
    return (
        str(number),
        *map(str, degrees),
        again,
        f"{time.step_seconds:.3g}",
        f"{time.tokens_per_second:,.0f}",
        f"{100 * time.bubble_fraction:.1f}",
        f"{choice.memory.total / GIB:.1f}",
        f"{choice.wire_bytes / GIB:,.3g}",
    )


def _short(layout: Layout) -> str:
    text = f"{layout.tensor} x {layout.pipeline}" + (f" ({layout.virtual})" if layout.virtual > 1 else "")
    return f"{text} x {layout.data}, micro {layout.micro_batch_size}"


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 4]} ..."


def advice_json(advice: Advice) -> dict[str, Any]:
    """Everything of the page, with seconds by kind and memory by kind."""
    return {
        "world": advice.world,
        "device": advice.machine.name,
        "assumptions": advice.machine.assumptions,
        "tried": advice.tried,
        "runnable": advice.runnable,
        "layouts": [
            asdict(choice.layout)
            | {
                "overrides": choice.overrides,
                "step_seconds": choice.time.step_seconds,
                "tokens_per_second": choice.time.tokens_per_second,
                "model_flops_utilisation": choice.time.model_flops_utilisation,
                "bubble_fraction": choice.time.bubble_fraction,
                "kinds_seconds": dict(choice.time.kinds),
                "memory_gib": {kind: size / GIB for kind, size in choice.memory.kinds().items()}
                | {"total": choice.memory.total / GIB},
                "wire_bytes": choice.wire_bytes,
            }
            for choice in advice.choices
        ],
        "refused": [
            {"count": refusal.number, "reason": refusal.words, "example": asdict(refusal.layout)}
            for refusal in advice.refused
        ],
    }
