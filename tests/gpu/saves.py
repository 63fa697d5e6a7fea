"""Saving and resuming: the same losses as without, bytes that are read, and memory beside the model's."""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path
from typing import Any

from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.config.run_config import RunConfig
from attnres_train.words import MIB
from tests.distributed import test_checkpoints
from tests.distributed.test_checkpoints import run_steps
from tests.distributed.test_resume_reads import bytes_read, wide
from tests.gpu.layouts import FP32
from tests.gpu.machine import Machine, forget_peak, peak_gpu_bytes
from tests.gpu.section import Section, judged

HALF = 3
MOST_READ = 1.1
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "data 2": (2, {}),
    "pipeline 2, virtual 2, tied": (2, {"pipeline": 2, "virtual": 2, "tied": True}),
    "tensor 2, sequence": (2, {"tensor": 2, "sequence": True}),
    "ZeRO-3, data 2": (2, {"zero": {"stage": 3}}),
    "data 4": (4, {}),
    "tensor 2, pipeline 2, data 2": (8, {"tensor": 2, "pipeline": 2}),
}
"""Each goes on from what it saved and from what the one before it saved."""


def run(machine: Machine) -> Section:
    chosen = [(name, case) for name, case in LAYOUTS.items() if case[0] <= machine.gpus]
    rows = []
    with tempfile.TemporaryDirectory(dir=machine.folder) as place:
        before: Path | None = None
        for name, (ranks, parallel) in machine.some(chosen, 2):
            config, folder = wide(**parallel), Path(place) / name.replace(" ", "-")
            losses = machine.run(run_steps, ranks, config, 0, 2 * HALF, folder, False)[0][0]
            first = machine.run(run_steps, ranks, config, 0, HALF, folder, True)[0][0]
            sources = {"itself": folder} | (
                {} if before is None or parallel.get("tied") else {"the one before": before}
            )
            for source, saved in sources.items():
                rows.append({"layout": name, "from": source} | _went_on(machine, ranks, config, saved, first, losses))
            before = None if parallel.get("tied") else folder
    said = (
        f"{HALF} steps, a save, new processes, {HALF} steps more against {2 * HALF} in one go; `read` is what all "
        f"ranks together read of files to load, over the checkpoint's size: at most {MOST_READ}."
    )
    return judged("Saves", said, rows)


def _went_on(
    machine: Machine, ranks: int, config: RunConfig, saved: Path, first: list[float], losses: list[float]
) -> dict[str, Any]:
    found = machine.run(resumed, ranks, config, saved)
    later = found[0]["losses"]
    pairs = zip(first + later, losses, strict=True)
    error = max(abs(value - reference) / abs(reference) for value, reference in pairs)
    manifest = read_manifest(checkpoints_folder(saved) / checkpoint_name(HALF))
    read = sum(rank["read_bytes"] for rank in found) / manifest.bytes
    gpu = [rank["gpu_bytes"] for rank in found if rank["gpu_bytes"] is not None]
    return {
        "loss": error,
        "read": read,
        "GPU MiB": max(gpu) / MIB if gpu else None,
        "host MiB": max(rank["host_bytes"] for rank in found) / MIB,
        "ok": len(later) == HALF and error <= FP32 and read <= MOST_READ,
    }


def resumed(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Of this rank: the losses after the resume, and what it took."""
    forget_peak()
    load, read = test_checkpoints.load_checkpoint, 0

    def measured(*arguments: Any) -> Any:
        nonlocal read
        began = bytes_read()
        loaded = load(*arguments)
        read = bytes_read() - began
        return loaded

    test_checkpoints.load_checkpoint = measured
    losses = run_steps(config, HALF, 2 * HALF, folder, False)[0]
    return {
        "losses": losses,
        "read_bytes": read,
        "gpu_bytes": peak_gpu_bytes(),
        "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
