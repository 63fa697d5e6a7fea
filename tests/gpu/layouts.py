"""Layouts of 1 to N ranks against one rank, and one rank against one process on the CPU: loss, norm, every gradient."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tests.cases import PUBLISHED, VARIANTS
from tests.distributed.ranks import run_ranks
from tests.distributed.test_layouts import LAYOUTS, ZERO_LAYOUTS, Layout
from tests.distributed.tiny import tiny_config
from tests.distributed.training import Trained, relative_error, train_all
from tests.gpu.machine import Machine
from tests.gpu.section import Section, judged

STEPS = 3
FP32, BF16 = 1e-4, 3e-2
"""The largest relative error: sums in another order, as the kernels of a GPU take them for each shape."""
DEEPEST = [
    Layout("pipeline 3", 3, {"pipeline": 3}),
    Layout("pipeline 3 x virtual 2", 3, {"pipeline": 3, "virtual": 2, "micro_batch_group": 4}, {"layers": 6}),
    Layout("pipeline 8", 8, {"pipeline": 8}, {"layers": 8}),
]
EAGER = [
    replace(layout, name=f"{layout.name}, eager", parallel=layout.parallel | {"eager": True})
    for layout in [*LAYOUTS, *DEEPEST]
    if "pipeline" in layout.parallel and not layout.model.get("tied")
]


def run(machine: Machine) -> Section:
    rows = _on_one_rank(machine)
    chosen = [layout for layout in [*LAYOUTS, *DEEPEST, *EAGER, *ZERO_LAYOUTS] if layout.ranks <= machine.gpus]
    references: dict[str, list[Trained]] = {}
    for layout in machine.some(chosen):
        cases = ("block",) if "zero" in layout.parallel else tuple(PUBLISHED)
        for precision, bound in (("fp32", FP32), ("bf16", BF16)):
            if precision == "bf16" and layout.parallel.get("eager"):
                continue
            model = {**layout.model, "precision": precision}
            key = repr((model, cases))
            if key not in references:
                references[key] = _trained(machine, 1, cases, model)
            found = _trained(machine, layout.ranks, cases, model | layout.parallel)
            rows.append({"layout": layout.name, "precision": precision} | _errors(found, references[key], bound))
    said = (
        f"Against one rank: {STEPS} steps that clip, every gradient of the first; bound {FP32} in fp32, {BF16} in bf16."
    )
    return judged("Layouts", said, rows)


def _on_one_rank(machine: Machine) -> list[dict[str, Any]]:
    cases = machine.some(list({**PUBLISHED, **VARIANTS}), 3)
    configs = [tiny_config(case) for case in cases]
    on_cpu = _on_cpu(configs)
    found = machine.run(train_all, 1, configs, STEPS)[0]
    return [{"layout": "one rank against the CPU", "precision": "fp32"} | _errors(found, on_cpu, FP32)]


def _on_cpu(configs: Sequence[Any]) -> list[Trained]:
    """With plain gloo, before the ranks of this process meet as on the machine. Its rank sees no GPU."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        return list(run_ranks(train_all, 1, configs, STEPS)[0])
    finally:
        if hidden is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = hidden


def _trained(machine: Machine, ranks: int, cases: Sequence[str], settings: dict[str, Any]) -> list[Trained]:
    return list(machine.run(train_all, ranks, [tiny_config(case, **settings) for case in cases], STEPS)[0])


def _errors(found: Sequence[Trained], references: Sequence[Trained], bound: float) -> dict[str, Any]:
    """The largest of all cases; not a number where one is none."""
    losses, norms, gradients = [], [], []
    for one, reference in zip(found, references, strict=True):
        losses += map(_relative, one.losses, reference.losses)
        norms += map(_relative, one.grad_norms, reference.grad_norms)
        for name, expected in reference.first_gradients.items():
            gradients.append((relative_error(one.first_gradients[name], expected), name))
    largest = {"loss": _largest(losses), "norm": _largest(norms), "gradient": _largest(e for e, _ in gradients)}
    of = max(gradients, key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0])[1]
    return {**largest, "of": of, "ok": all(error <= bound for error in largest.values())}


def _largest(errors: Iterable[float]) -> float:
    numbers = list(errors)
    return math.nan if any(map(math.isnan, numbers)) else max(numbers)


def _relative(value: float, reference: float) -> float:
    return abs(value - reference) / abs(reference)
