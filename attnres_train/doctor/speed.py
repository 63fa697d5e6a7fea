"""One process of the doctor's speed test: `python -m attnres_train.doctor.speed RANK RANKS FILE`."""

from __future__ import annotations

import json

import torch
import torch.distributed as dist

from attnres_train.doctor.processes import join_group, seconds_together, there_and_back
from attnres_train.words import MIB

SIZE_MIB = 16
TIMES = 5


def main() -> None:
    """Meet the others at FILE; rank 0 prints the speeds."""
    rank, ranks, device = join_group()
    big, small = torch.ones(SIZE_MIB * MIB // 4, device=device), torch.ones(1, device=device)
    reduce_seconds = seconds_together(lambda: dist.all_reduce(big), device, TIMES)
    both_ways = seconds_together(lambda: there_and_back(big, rank), device, TIMES)
    round_trip = seconds_together(lambda: there_and_back(small, rank), device, TIMES)
    if rank == 0:
        speeds = {
            "ranks": ranks,
            "backend": dist.get_backend(),
            "all_reduce_mib_per_second": SIZE_MIB / reduce_seconds,
            "send_mib_per_second": 2 * SIZE_MIB / both_ways,
            "round_trip_seconds": round_trip,
        }
        print(json.dumps(speeds))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
