"""The ranks of a section: on GPUs over NCCL, or, where there are none, on CPUs under NCCL's rules."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests import nccl_rules
from tests.distributed import ranks as rank_processes
from tests.distributed.ranks import run_ranks

FORKS = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Environment of a process that forks its ranks: whether there is a GPU is asked without starting CUDA in it."""


def gpus_here() -> int:
    """GPUs that torch can use. Asked in another process: this one must not touch CUDA, since it forks its ranks."""
    count = "import torch; print(torch.cuda.device_count())"
    asked = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True)
    return int(asked.stdout.split()[-1]) if asked.returncode == 0 else 0


class GpuMeeting:
    """Rank r takes GPU r; they meet as ranks of a launch do."""

    most_ranks: int | None = None

    def __init__(self, _folder: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def join(self, rank: int, world: int) -> None:
        """Called by a forked rank."""
        from attnres_train.parallel.grid import start_process_group

        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        os.environ |= {name: str(value) for name, value in place.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
        start_process_group(rank_processes.TIMEOUT_SECONDS)


@dataclass(frozen=True)
class Machine:
    """`gpus` is how many ranks there are at most; the process of a section must not touch CUDA itself: it forks."""

    gpus: int
    folder: Path
    """For what is written on the way; sections share it."""
    pretend: bool = False
    """CPUs under NCCL's rules stand in for GPUs."""
    brief: bool = False
    """One case of each kind."""

    def meet(self) -> None:
        """From now on the ranks of this process meet as they do on this machine."""
        rank_processes.Meeting = nccl_rules.Meeting if self.pretend else GpuMeeting  # type: ignore[misc, assignment]

    def run(self, function: Callable[..., Any], world: int, *arguments: Any) -> list[Any]:
        self.meet()
        return run_ranks(function, world, *arguments)

    def some(self, cases: list[Any], least: int = 1) -> list[Any]:
        return cases[:least] if self.brief else cases

    def arguments(self) -> list[str]:
        flags = [flag for flag, on in (("--pretend", self.pretend), ("--brief", self.brief)) if on]
        return ["--gpus", str(self.gpus), "--folder", str(self.folder), *flags]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, help="how many to use (default: all there are; 2 with --pretend)")
    parser.add_argument("--pretend", action="store_true", help="CPUs under NCCL's rules stand in for GPUs")
    parser.add_argument("--brief", action="store_true", help="one case of each kind: whether the script itself works")
    parser.add_argument("--folder", type=Path, default=Path("build/gpu"), help="for the page (default %(default)s)")


def synchronize() -> None:
    """Until the GPU of this rank has done what was asked of it; nothing where there is none."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_gpu_bytes() -> int | None:
    """The most that tensors of this rank took on its GPU since `forget_peak`; None where there is none."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None


def forget_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
