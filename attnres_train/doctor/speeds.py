"""One process of the doctor's speed test: `python -m attnres_train.doctor.speeds RANK RANKS FILE`."""

from __future__ import annotations

import json

import torch
import torch.distributed as dist

from attnres_train.doctor.rank import Rank

MIB = 1 << 20
SIZE_MIB = 16
TIMES = 5
WAIT_SECONDS = 60


def main() -> None:
    """Meet the others at FILE; rank 0 prints the speeds."""
    with Rank.met(WAIT_SECONDS) as here:
        big, small = torch.ones(SIZE_MIB * MIB // 4, device=here.device), torch.ones(1, device=here.device)
        reduce_seconds = here.seconds(lambda: dist.all_reduce(big), TIMES)
        both_ways = here.seconds(lambda: here.there_and_back(big), TIMES)
        round_trip = here.seconds(lambda: here.there_and_back(small), TIMES)
        if here.rank == 0:
            speeds = {
                "ranks": here.ranks,
                "backend": here.backend,
                "all_reduce_mib_per_second": SIZE_MIB / reduce_seconds,
                "send_mib_per_second": 2 * SIZE_MIB / both_ways,
                "round_trip_seconds": round_trip,
            }
            print(json.dumps(speeds))


if __name__ == "__main__":
    main()
