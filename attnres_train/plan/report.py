"""A plan as the object that `attnres plan --json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from attnres_train.plan.speeds import GIB, Machine
from attnres_train.plan.timing import TimePlan
from attnres_train.plan.whole import Plan


def as_json(plan: Plan) -> dict[str, Any]:
    """The object that `attnres plan --json` prints."""
    setup = plan.setup
    memory = {kind: size / GIB for kind, size in plan.memory.kinds().items()}
    return {
        "parameters": {"total": plan.parameters_total, "per_rank": list(plan.parameters_per_rank)},
        "vocabulary": {"size": setup.vocabulary, "padded": setup.padded_vocabulary},
        "grid": setup.degrees,
        "stages": [asdict(stage) for stage in plan.stages],
        "global_batch_size": setup.config.training.global_batch_size,
        "micro_batches": setup.micro_batches,
        "accumulation": setup.micro_batches,
        "tokens_per_step": setup.step_tokens,
        "steps": setup.config.training.steps,
        "flops_per_step": setup.step_flops,
        "isolate_documents": setup.config.data.isolate_documents,
        "bubble_fraction": plan.bubble_fraction,
        "learning_rates": list(plan.learning_rates),
        "wire": plan.wire.as_json(),
        "tensor_bytes": plan.tensor_bytes,
        "memory_gib": memory | {"total": plan.memory.total / GIB},
        "memory_rank": plan.memory.rank,
        "memory_host_gib": plan.memory.host / GIB,
        "checkpoint": asdict(plan.checkpoint),
        "device": None if plan.machine is None else _device(plan.machine),
        "fits": plan.fits,
        "time": None if plan.time is None else _time(plan.time),
    }


def _device(machine: Machine) -> dict[str, Any]:
    return {
        "name": machine.name,
        "measured": machine.measured,
        "memory_gib": machine.memory_gib,
        "usable_gib": machine.usable_bytes / GIB,
        "peak_flops_per_second": machine.peak_flops_per_second,
        "devices_per_node": machine.devices_per_node,
        "assumptions": machine.assumptions,
    }


def _time(time: TimePlan) -> dict[str, Any]:
    named = {"kinds": "kinds_seconds", "stages": "stages_seconds"}
    return {named.get(name, name): value for name, value in asdict(time).items()}
