"""The model whose speeds, memory and seconds are measured, and the layouts it is tried in."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from attnres_train.config.keys import all_keys
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import resolved_toml
from tests.bench.plan import config_of
from tests.gpu.machine import Machine

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "one rank, full, recompute": (1, {"residual": {"mode": "full"}, "training": {"recompute": "layer"}}),
    "data 2": (2, {}),
    "tensor 2, sequence": (2, {"parallel": {"tensor": 2, "sequence": True}}),
    "pipeline 2, virtual 2": (2, {"parallel": {"pipeline": 2, "virtual": 2}}),
    "pipeline 2, virtual 2, offload": (2, {"parallel": {"pipeline": 2, "virtual": 2, "offload": True}}),
    "pipeline 4": (4, {"parallel": {"pipeline": 4}}),
    "tensor 2, pipeline 2, data 2": (8, {"parallel": {"tensor": 2, "pipeline": 2}}),
}
"""By name: ranks, and what differs from the first."""
ON_GPU = {"layers": 16, "width": 2048, "sequence": 4096, "batch": 1, "micro_batches": 8, "precision": "bf16"}
ON_CPU = {"layers": 8, "width": 64, "sequence": 64, "batch": 1, "micro_batches": 4, "precision": "fp32"}


def model(machine: Machine, changes: dict[str, Any] | None = None) -> RunConfig:
    """Large enough on a GPU that its kernels, and not their launches, take the time."""
    config: RunConfig = config_of(argparse.Namespace(**(ON_CPU if machine.pretend else ON_GPU)), changes or {})
    return config


def written(machine: Machine) -> Path:
    """The first layout as a file, for commands."""
    path, config = machine.folder / "model.toml", model(machine)
    config = dataclasses.replace(
        config, training=dataclasses.replace(config.training, run_folder=str(machine.folder / "run"))
    )
    path.write_text(resolved_toml(config, dict.fromkeys(all_keys(), "tests.gpu")), encoding="utf-8")
    return path


def layouts(machine: Machine) -> dict[str, tuple[int, dict[str, Any]]]:
    """Those that fit on this machine."""
    chosen = [(name, layout) for name, layout in LAYOUTS.items() if layout[0] <= machine.gpus]
    return dict(machine.some(chosen, 3))
