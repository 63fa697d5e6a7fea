"""One of the processes that measure: it meets the others, and times what it does alone and what all do at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

LEAST_TIMES, LEAST_SECONDS = 5, 0.4
"""An action of one rank is repeated until both are reached; its shortest time counts."""


@dataclass(frozen=True)
class Rank:
    """This process among `ranks`."""

    rank: int
    ranks: int
    backend: str
    device: torch.device

    @classmethod
    @contextmanager
    def met(cls, wait_seconds: float) -> Iterator[Rank]:
        """The one that the command line says (RANK RANKS FILE), which has met the others at FILE."""
        rank, ranks, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
        gpu = torch.cuda.is_available()
        device = torch.device("cuda", rank) if gpu else torch.device("cpu")
        backend = "nccl" if gpu else "gloo"
        if gpu:
            torch.cuda.set_device(device)
        limit = timedelta(seconds=wait_seconds)
        dist.init_process_group(backend, init_method=f"file://{place}", rank=rank, world_size=ranks, timeout=limit)
        yield cls(rank, ranks, backend, device)
        dist.destroy_process_group()

    def there_and_back(self, tensor: torch.Tensor) -> None:
        """Rank 0 sends to rank 1, which sends back; others do nothing."""
        if self.rank < 2:
            for move in (dist.send, dist.recv) if self.rank == 0 else (dist.recv, dist.send):
                move(tensor, 1 - self.rank)

    def seconds(self, action: Callable[[], object], meetings: int | None = None) -> float:
        """The shortest of some times that `action` takes, after one that does not count.

        On one CPU thread it is the processor's time, so that other programs on the machine do not count. With
        `meetings` all ranks begin together, so often, and the clock on the wall counts.
        """
        gpu = self.device.type == "cuda"
        clock = time.perf_counter if gpu or meetings or torch.get_num_threads() > 1 else time.process_time
        times: list[float] = []
        action()
        while len(times) < (meetings or LEAST_TIMES) or (meetings is None and sum(times) < LEAST_SECONDS):
            if meetings:
                dist.barrier()
            if gpu:
                torch.cuda.synchronize()
            started = clock()
            action()
            if gpu:
                torch.cuda.synchronize()
            times.append(clock() - started)
        return min(times)
