"""The kernels of the depth mix against float64, and their speed over what the memory's bandwidth allows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnres_train.depth import aggregate
from attnres_train.depth.backends import why_not
from attnres_train.depth.mix import DTYPES
from tests.gpu.machine import Machine, synchronize
from tests.gpu.section import Section, judged

CHECKS = Path(__file__).resolve().parents[1] / "unit/test_depth_triton.py"
COPY_BYTES = 2**30
ROUNDS = 10


def run(machine: Machine) -> Section:
    checks = _checks(machine)
    rows: list[dict[str, Any]] = [{"what": "checks against float64", "ok": checks is None}]
    on_gpu = not machine.pretend
    for precision in ("fp32", "bf16"):
        rows += machine.run(speeds, 1, precision, (24, 8192, 4096) if on_gpu else (9, 64, 64))[0]
    said = (
        "`over bus`: forward and backward over the time to move (3 S + 2) slices at the bandwidth of a copy in the "
        "same run: each source read twice and its gradient written, the mix and its gradient once."
    )
    return judged("Kernels", said, rows, notes=(checks or "").splitlines()[-30:])


def _checks(machine: Machine) -> str | None:
    """What pytest says of the kernels' own checks where it is not content."""
    names = "check_*" if not machine.brief else "check_th*"
    command = [sys.executable, "-m", "pytest", "-q", str(CHECKS), "-o", f"python_functions={names}"]
    settings = {"TRITON_INTERPRET": "1" if machine.pretend else "0"}
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    return None if done.returncode == 0 else done.stdout + done.stderr


def speeds(precision: str, shape: tuple[int, int, int]) -> list[dict[str, Any]]:
    """Of each backend that runs here: sources, rows and width as in `shape`."""
    sources, rows, width = shape
    device, dtype = torch.device("cuda" if torch.cuda.is_available() else "cpu"), DTYPES[precision]
    leaves = [torch.randn(rows, width, device=device).to(dtype).requires_grad_() for _ in range(sources)]
    query = (torch.randn(width, device=device) / width**0.5).requires_grad_()
    gain = torch.ones(width, device=device, requires_grad=True)
    upstream = torch.randn(rows, width, device=device).to(dtype)
    tensors = (*leaves, query, gain)
    size = COPY_BYTES if device.type == "cuda" else COPY_BYTES // 64
    block = torch.empty(size, dtype=torch.uint8, device=device)
    copied = torch.empty_like(block)
    bandwidth = 2 * size / least_seconds(lambda: copied.copy_(block))
    bus_seconds = (3 * sources + 2) * rows * width * dtype.itemsize / bandwidth

    def mix(backend: Any) -> Callable[[], object]:
        def both() -> tuple[Tensor, ...]:
            mixed = aggregate(leaves, query, gain, eps=1e-5, backend=backend)
            return torch.autograd.grad(mixed, tensors, upstream)

        return both

    backends = [name for name in ("triton", "native", "lean", "reference") if _runs(name, device.type, dtype)]
    return [
        {
            "what": f"{name}, {sources} sources of [{rows}, {width}] {precision}",
            "over bus": least_seconds(mix(name)) / bus_seconds,
            "copy GB/s": bandwidth / 1e9,
        }
        for name in backends
    ]


def _runs(backend: Any, device_type: str, dtype: torch.dtype) -> bool:
    interpreted = backend == "triton" and device_type == "cpu"
    return backend == "reference" or (not interpreted and why_not(backend, device_type, dtype) is None)


def least_seconds(action: Callable[[], object]) -> float:
    action()
    found = []
    for _ in range(ROUNDS):
        synchronize()
        started = time.perf_counter()
        action()
        synchronize()
        found.append(time.perf_counter() - started)
    return min(found)
