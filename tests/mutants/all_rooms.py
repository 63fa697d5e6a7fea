"""Every mutant, by room."""

from __future__ import annotations

from collections.abc import Mapping

from tests.mutants import checkpoint, data, depth, engine, launch, observe, parallel, plan, trainer
from tests.mutants.mutant import Mutant

ROOMS: Mapping[str, tuple[Mutant, ...]] = {
    "depth": depth.MUTANTS,
    "parallel": parallel.MUTANTS,
    "engine": engine.MUTANTS,
    "checkpoint": checkpoint.MUTANTS,
    "trainer": trainer.MUTANTS,
    "data": data.MUTANTS,
    "plan": plan.MUTANTS,
    "observe": observe.MUTANTS,
    "launch": launch.MUTANTS,
}
