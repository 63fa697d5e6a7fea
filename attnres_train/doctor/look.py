"""`attnres doctor`: what this machine is, and how fast its ranks talk, beside what a plan needs of a step."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnres_train.config.load import Loaded
from attnres_train.config.resolve import run_folder
from attnres_train.config.run_config import RunConfig
from attnres_train.depth.describe import why_no_backend
from attnres_train.doctor.device import device_summary, measure_device
from attnres_train.doctor.machine import machine_lines, problem_lines
from attnres_train.doctor.processes import run_processes
from attnres_train.engine.rules import file_problems
from attnres_train.errors import Problem, Refused
from attnres_train.launch.cores import usable_cores
from attnres_train.launch.facts import version_facts
from attnres_train.launch.interfaces import interfaces, refuse_wrong_interfaces
from attnres_train.launch.names import is_own, resolve
from attnres_train.parallel.device import device_type, hide_gpus
from attnres_train.plan import plan
from attnres_train.plan.device_file import device_file_text
from attnres_train.plan.page import table
from attnres_train.setup import FP32_BYTES
from attnres_train.words import GIB, MIB, counted

MOST_RANKS = 8
"""Of the speed test; more on one machine's CPUs measure only the CPUs."""


def doctor(loaded: Loaded | None, world_size: int | None, device_file: Path | None = None) -> dict[str, Any]:
    """Everything that is found, as `--json` prints it; with `device_file` this machine's speeds are written there.

    Raises Refused where something keeps a run from starting here, or a device file has no configuration to measure for.
    """
    if device_file is not None and loaded is None:
        what = "needs a configuration, whose shapes are measured"
        raise Refused(Problem("--device-file", what, "attnres doctor CONFIG.toml --device-file FILE"))
    wish = loaded.config.parallel.device if loaded else "auto"
    hide_gpus(wish, os.environ)  # from here on, and from those that measure
    world = world_size or (loaded.config.parallel.model_ranks if loaded else 2)
    found: dict[str, Any] = {
        "host": socket.gethostname(),
        "versions": version_facts() | {"pdsh": _tool("pdsh"), "ip": _tool("ip")},
        "devices": _devices(),
        "links": _links(),
        "checks": [*_checks(loaded), *machine_lines(None if loaded is None else loaded.config, world)],
    }
    ranks = min(max(world, 2), _most_ranks(found["devices"]))
    found["speeds"] = run_processes("attnres_train.doctor.speed", ranks) if ranks > 1 else None
    if loaded is not None:
        found["needs"] = needs(loaded, world)
    if device_file is not None and loaded is not None:
        measured = measure_device(loaded, world, ranks, found["devices"])
        device_file.write_text(device_file_text(measured), encoding="utf-8")
        found["device_file"] = {"path": str(device_file.absolute()), "summary": device_summary(measured)}
    return found


def needs(loaded: Loaded, world: int) -> dict[str, float]:
    """MiB that the busiest link of a rank carries each step, by the plan."""
    planned = plan(loaded.config, world)
    setup = planned.setup
    per_rank = max(planned.parameters_per_rank)
    sends = max((r.forward_bytes + r.backward_bytes for r in planned.wire.ranks), default=0) * setup.micro_batches
    return {
        "gradients_mib": per_rank * FP32_BYTES / MIB if setup.data > 1 else 0.0,
        "tensor_mib": planned.tensor_bytes / MIB,
        "pipeline_mib": sends / MIB,
    }


def doctor_text(found: Mapping[str, Any]) -> str:
    """`found` as a page."""
    speeds, written = found["speeds"], found.get("device_file")
    measured = ["not measured: one device here"]
    if speeds:
        where = f"{counted(speeds['ranks'], 'rank')} here, {speeds['backend']}"
        send, micros = speeds["send_mib_per_second"], speeds["round_trip_seconds"] * 1e6
        measured = [f"{where}: all-reduce {speeds['all_reduce_mib_per_second']:,.0f} MiB/s"]
        measured += [f"send and receive {send:,.0f} MiB/s, there and back {micros:,.0f} us"]
    blocks: Mapping[str, Sequence[str]] = {
        "host": [str(found["host"])],
        "versions": [f"{name} {version}" for name, version in found["versions"].items()],
        "devices": found["devices"]["lines"],
        "links": found["links"],
        "checks": found["checks"],
        "speed": measured,
        "device file": [written["path"], *written["summary"]] if written else [],
        "a step needs": [_need(key, mib, speeds) for key, mib in found.get("needs", {}).items()],
    }
    rows = [("" if number else name, line) for name, lines in blocks.items() for number, line in enumerate(lines)]
    return "\n".join(table(rows))


_NEEDS = {
    "gradients_mib": ("all-reduce", "gradients over the data-parallel ranks", "all_reduce_mib_per_second"),
    "tensor_mib": ("all-reduce", "activations over the tensor ranks", "all_reduce_mib_per_second"),
    "pipeline_mib": ("send", "depth history between stages", "send_mib_per_second"),
}


def _need(key: str, mib: float, speeds: Mapping[str, float] | None) -> str:
    kind, what, rate = _NEEDS[key]
    speed = speeds[rate] if speeds else 0
    seconds = f", {mib / speed:.3f} s at this speed" if speed and mib else ""
    return f"{kind} {mib:,.1f} MiB a rank ({what}){seconds}"


def _devices() -> dict[str, Any]:
    import torch

    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    cores = usable_cores()
    lines = [f"GPU {i}: {gpu.name}, {gpu.total_memory / GIB:.0f} GiB" for i, gpu in enumerate(gpus)]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    room = f"{counted(cores, 'CPU core')} for this process, {memory:.0f} GiB of memory"
    lines.append(f"{room}; load {os.getloadavg()[0]:.1f}")
    whole = gpus[0].total_memory / GIB if gpus else memory
    return {"gpus": len(gpus), "cores": cores, "memory_gib": whole, "lines": lines}


def _most_ranks(devices: Mapping[str, Any]) -> int:
    return min(MOST_RANKS, devices["gpus"] or max(2, devices["cores"]))


def _links() -> list[str]:
    """Network interfaces that are up, with their rate where the driver says it."""
    lines = []
    for path in sorted(Path("/sys/class/net").glob("*")):
        if _word(path / "operstate") in ("up", "unknown"):
            rate = _word(path / "speed")
            known = rate.isdecimal() and int(rate) > 0
            lines.append(f"{path.name}: {f'{rate} Mbit/s' if known else 'rate unknown'}, MTU {_word(path / 'mtu')}")
    lines += [f"InfiniBand: {path.name}" for path in sorted(Path("/sys/class/infiniband").glob("*"))]
    return lines or ["no network interface is up"]


def _checks(loaded: Loaded | None) -> list[str]:
    """What a launch asks of the machine: name, clock, disk."""
    try:
        address = resolve(socket.gethostname())
        warn = " (a loopback address: with several nodes set GLOO_SOCKET_IFNAME)" if address.startswith("127.") else ""
        lines = [f"own name resolves to {address}{warn}{'' if is_own(address) else ', which is not this machine'}"]
    except Refused:
        lines = [
            f"own name {socket.gethostname()!r} does not resolve: the launch scripts do without it on one machine; for "
            "several nodes name an address (--master), or add the name to /etc/hosts of every node"
        ]
    try:
        refuse_wrong_interfaces(os.environ, interfaces())
    except Refused as refusal:
        lines += problem_lines(refusal.problems)
    lines.append(f"clock: {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}")
    folder = run_folder(loaded.config, loaded.path) if loaded else Path.cwd()
    while not folder.exists():
        folder = folder.parent
    lines.append(f"disk: {shutil.disk_usage(folder).free / GIB:,.1f} GiB free at {folder}")
    return lines + (_missing_here(loaded.config) if loaded else [])


def _missing_here(config: RunConfig) -> list[str]:
    """What the configuration asks for and this machine has not."""
    lines = problem_lines(file_problems(config))
    device = device_type(config.parallel.device)
    if reason := why_no_backend(config.residual, device, config.training.precision):
        lines.append(f'PROBLEM: residual.backend = "{config.residual.backend}": {reason}')
    return lines


def _tool(name: str) -> str:
    return shutil.which(name) or "not installed"


def _word(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
