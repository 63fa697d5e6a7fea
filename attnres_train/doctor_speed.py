"""One process of the doctor's speed test: `python -m attnres_train.doctor_speed RANK RANKS FILE`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

MIB = 1 << 20
SIZE_MIB = 16
TIMES = 5


def main() -> None:
    """Meet the others at FILE; rank 0 prints the speeds."""
    rank, ranks, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if gpu else torch.device("cpu")
    backend = "nccl" if gpu else "gloo"
    if gpu:
        torch.cuda.set_device(device)
    limit = timedelta(seconds=60)
    dist.init_process_group(backend, init_method=f"file://{place}", rank=rank, world_size=ranks, timeout=limit)
    big, small = torch.ones(SIZE_MIB * MIB // 4, device=device), torch.ones(1, device=device)

    def there_and_back(tensor: torch.Tensor) -> None:
        if rank < 2:
            order = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
            for move in order:
                move(tensor, 1 - rank)

    reduce_seconds = _seconds(lambda: dist.all_reduce(big), device)
    both_ways = _seconds(lambda: there_and_back(big), device)
    round_trip = _seconds(lambda: there_and_back(small), device)
    if rank == 0:
        speeds = {
            "ranks": ranks,
            "backend": backend,
            "all_reduce_mib_per_second": SIZE_MIB / reduce_seconds,
            "send_mib_per_second": 2 * SIZE_MIB / both_ways,
            "round_trip_seconds": round_trip,
        }
        print(json.dumps(speeds))
    dist.destroy_process_group()


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    """The shortest of some times that `action` takes, after one that does not count."""
    times = []
    for _ in range(TIMES + 1):
        dist.barrier()
        started = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times[1:])


if __name__ == "__main__":
    main()
