"""What makes the host wait for the GPU between the first forward of a step and the end of its last backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnres_train.config.run_config import RunConfig
from tests.distributed.test_synchronization import CONFIGS, FEW, found_in
from tests.distributed.tiny import tiny_config
from tests.gpu.machine import Machine
from tests.gpu.section import Section, judged

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "pipeline 2": (2, {"pipeline": 2}),
    "pipeline 2, virtual 2, offload": (2, {"pipeline": 2, "virtual": 2, "offload": True}),
    "tensor 2, sequence": (2, {"tensor": 2, "sequence": True}),
}


def run(machine: Machine) -> Section:
    rows: list[dict[str, Any]] = []
    for name, (ranks, parallel) in LAYOUTS.items():
        if ranks <= machine.gpus:
            for case, settings in machine.some(CONFIGS if ranks == 1 else FEW, 3):
                found = _found(machine, ranks, [tiny_config(case, **settings, **parallel)])
                rows.append({"layout": name, "case": f"{case} {settings or ''}", "waits": found, "ok": not found})
    said = "From the first forward to the end of the last backward; on a GPU torch raises where the host would wait."
    return judged("Synchronization", said, rows)


def _found(machine: Machine, ranks: int, configs: Sequence[RunConfig]) -> str:
    """The first place of any rank, empty where there is none."""
    try:
        found = [line for of_rank in machine.run(found_in, ranks, configs) for told in of_rank for line in told]
    except AssertionError as error:  # what a rank raises
        if "called a synchronizing" not in str(error):
            raise
        found = [line.strip() for line in str(error).splitlines() if line.strip()][-4:]
        return " ".join(found)
    return found[0] if found else ""
