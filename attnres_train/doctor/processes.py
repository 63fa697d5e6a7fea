"""Measuring by several processes of this machine, one a rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from attnres_train.depth.describe import default_device_type
from attnres_train.errors import Problem, Refused
from attnres_train.words import counted

SPEED_SECONDS = 120
WAIT_SECONDS = 300


def run_processes(module: str, ranks: int, argument: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What rank 0 of `ranks` processes of `module` prints as JSON; each gets its rank, their number, a file to meet at
    and `argument` as JSON.

    Raises Refused, with the reason, if one fails or all take longer than SPEED_SECONDS.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | os.environ
        words = [sys.executable, "-W", "ignore", "-m", module]
        more = [] if argument is None else [json.dumps(argument)]
        piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        commands = ([*words, str(rank), str(ranks), f"{folder}/meet", *more] for rank in range(ranks))
        processes = [subprocess.Popen(command, env=environment, **piped) for command in commands]
        try:
            said = [process.communicate(timeout=SPEED_SECONDS) for process in processes]
        except subprocess.TimeoutExpired:
            what = f"{counted(ranks, 'rank')} on this machine did not finish the speed test in {SPEED_SECONDS} s"
            raise Refused(Problem("links", what, "is the machine overloaded, or the loopback closed?")) from None
        finally:
            for process in processes:
                process.kill()
        for rank, process in enumerate(processes):
            if process.returncode != 0:
                reason = (said[rank][1].strip().splitlines() or ["no words"])[-1]
                raise Refused(Problem("links", f"rank {rank} of the speed test failed: {reason}", "mend that first"))
        found: dict[str, Any] = json.loads(said[0][0])
        return found


def join_group() -> tuple[int, int, torch.device]:
    """In a process of `run_processes`: meet the others; rank, ranks, and the device of this one."""
    rank, ranks, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    gpu = default_device_type() == "cuda"
    device = torch.device("cuda", rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    limit = timedelta(seconds=WAIT_SECONDS)
    backend = "nccl" if gpu else "gloo"
    dist.init_process_group(backend, init_method=f"file://{place}", rank=rank, world_size=ranks, timeout=limit)
    return rank, ranks, device


def there_and_back(tensor: torch.Tensor, rank: int) -> None:
    """The first two ranks send it to each other in turn; others do nothing."""
    if rank < 2:
        for move in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
            move(tensor, 1 - rank)


def seconds_together(action: Callable[[], object], device: torch.device, times: int) -> float:
    """The shortest of `times` that all ranks take for `action` on the wall, after one that does not count."""
    taken = []
    for _ in range(times + 1):
        dist.barrier()
        synchronize(device)
        started = time.perf_counter()
        action()
        synchronize(device)
        taken.append(time.perf_counter() - started)
    return min(taken[1:])


def synchronize(device: torch.device) -> None:
    """Wait for what the device does."""
    if device.type == "cuda":
        torch.cuda.synchronize()
