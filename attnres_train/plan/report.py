"""A plan as the object that `attnres plan --json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from attnres_train.plan.memory import GIB
from attnres_train.plan.whole import Plan


def as_json(plan: Plan) -> dict[str, Any]:
    """The object that `attnres plan --json` prints."""
    memory = {kind: size / GIB for kind, size in plan.memory.kinds().items()}
    return {
        "parameters": {"total": plan.parameters_total, "per_rank": list(plan.parameters_per_rank)},
        "vocabulary": {"size": plan.vocabulary, "padded": plan.padded_vocabulary},
        "grid": asdict(plan.grid),
        "stages": [asdict(stage) for stage in plan.stages],
        "global_batch_size": plan.global_batch_size,
        "micro_batches": plan.micro_batches,
        "accumulation": plan.micro_batches,
        "tokens_per_step": plan.tokens_per_step,
        "steps": plan.steps,
        "flops_per_step": plan.flops_per_step,
        "isolate_documents": plan.isolate_documents,
        "bubble_fraction": plan.bubble_fraction,
        "learning_rates": list(plan.learning_rates),
        "wire": plan.wire.as_json(),
        "memory_gib": memory | {"total": plan.memory.total / GIB},
        "memory_rank": plan.memory.rank,
    }
