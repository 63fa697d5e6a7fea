"""One step under torch's profiler: what the time of the device goes to."""

from __future__ import annotations

from typing import Any

import torch

from attnres_train.config.run_config import RunConfig
from attnres_train.parallel.grid import build_grid
from attnres_train.setup import Setup
from attnres_train.trainer.build import build_parts
from tests.bench.plan import VOCABULARY, batches_of
from tests.gpu.machine import Machine, synchronize
from tests.gpu.models import model
from tests.gpu.section import Section

MOST = 15


def run(machine: Machine) -> Section:
    rows = machine.run(step_by_operation, 1, model(machine))[0]
    said = f"One rank, one step after three: the {MOST} operations that take most, by their own time."
    return Section("Profile", "measured", said, rows)


def step_by_operation(config: RunConfig) -> list[dict[str, Any]]:
    grid = build_grid(config.parallel, seed=1)
    parts = build_parts(Setup.of(config, grid.world_size, VOCABULARY), grid)
    batches = batches_of(config, grid.data)

    def step() -> None:
        parts.engine.zero_grad()
        parts.pipeline.run(parts.engine.chunks, batches)
        parts.engine.step(1e-4)
        synchronize()

    for _ in range(3):
        step()
    on_gpu = grid.device.type == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        step()

    def own(event: Any) -> float:
        return float(event.self_device_time_total if on_gpu else event.self_cpu_time_total)

    events = sorted(profiler.key_averages(), key=own, reverse=True)
    whole = sum(map(own, events))
    return [
        {"operation": event.key[:80], "calls": event.count, "ms": own(event) / 1e3, "share": own(event) / whole}
        for event in events[:MOST]
    ]
