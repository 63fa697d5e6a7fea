"""Memory and seconds of a step beside those that the plan foresees from the device file of this machine."""

from __future__ import annotations

import gc
import time

import torch
import torch.distributed as dist
from torch import Tensor

from attnres_train.config.run_config import RunConfig
from attnres_train.parallel.grid import build_grid
from attnres_train.plan import plan
from attnres_train.plan.device_file import find_machine
from attnres_train.plan.memory import worst_rank_memory
from attnres_train.setup import Setup
from attnres_train.trainer.build import build_parts
from attnres_train.words import MIB
from tests.bench.peak import peak_bytes
from tests.bench.plan import VOCABULARY, batches_of
from tests.gpu.device import device_file
from tests.gpu.machine import Machine, forget_peak, peak_gpu_bytes, synchronize
from tests.gpu.models import layouts, model
from tests.gpu.section import Section, judged

STEPS = 6
MOST_OVER_PLAN = 1.15
"""Of memory: the plan says to take a tenth on top. On CPUs only tensors are counted, and it is not judged."""


def run(machine: Machine) -> Section:
    rows = []
    for name, (ranks, changes) in layouts(machine).items():
        config = model(machine, changes)
        device = find_machine(str(device_file(machine)), config.training.precision)
        planned = plan(config, ranks, machine=device).time
        assert planned is not None
        found = machine.run(steps_and_peak, ranks, config, machine.brief)
        seconds = min(max(times) for times in zip(*(times for times, _ in found), strict=True))
        peak = max(bytes_ for _, bytes_ in found)
        foreseen = worst_rank_memory(Setup.of(config, ranks, VOCABULARY)).total
        rows.append(
            {
                "layout": name,
                "MiB": peak / MIB,
                "plan's": foreseen / MIB,
                "over plan": peak / foreseen,
                "seconds": seconds,
                "the plan's": planned.step_seconds,
                "plan over": planned.step_seconds / seconds,
                "ok": machine.pretend or peak <= MOST_OVER_PLAN * foreseen,
            }
        )
    said = f"The fullest rank's peak, at most {MOST_OVER_PLAN} of the plan's; the fastest of {STEPS} steps, not judged."
    return judged("Memory", said, rows)


def steps_and_peak(config: RunConfig, brief: bool) -> tuple[list[float], int]:
    """Of this rank: seconds of each step but the first two, and the most bytes its tensors took."""
    before = [value for value in gc.get_objects() if isinstance(value, Tensor)]
    grid = build_grid(config.parallel, seed=1)
    parts = build_parts(Setup.of(config, grid.world_size, VOCABULARY), grid)
    batches = batches_of(config, grid.data)

    def step() -> None:
        parts.engine.zero_grad()
        parts.pipeline.run(parts.engine.chunks, batches)
        parts.engine.step(1e-4)

    seconds = []
    for _ in range(3 if brief else STEPS + 2):
        dist.barrier()
        synchronize()
        started = time.perf_counter()
        step()
        synchronize()
        seconds.append(time.perf_counter() - started)
    forget_peak()
    if not torch.cuda.is_available():
        already = [v for v in gc.get_objects() if isinstance(v, Tensor) and not any(v is known for known in before)]
        return seconds[2:], peak_bytes(step, already)
    step()
    synchronize()
    peak = peak_gpu_bytes()
    assert peak is not None
    return seconds[2:], peak
