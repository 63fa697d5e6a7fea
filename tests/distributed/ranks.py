"""Run one function on several forked gloo ranks and give back what each returned."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import traceback
import unittest
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT_SECONDS = 120


class Meeting:
    """How ranks meet: through a file in `folder`, which is theirs alone."""

    most_ranks: int | None = None
    """That there is room for; a test of more is skipped."""

    def __init__(self, folder: Path):
        self.rendezvous = folder / "rendezvous"

    def join(self, rank: int, world: int) -> None:
        """Called by a forked rank."""
        timeout = timedelta(seconds=TIMEOUT_SECONDS)
        method = f"file://{self.rendezvous}"
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world, timeout=timeout)


def run_ranks(function: Callable[..., Any], world_size: int, *arguments: Any) -> list[Any]:
    """`function(*arguments)` on `world_size` ranks of one process group; results in rank order.

    Ranks are forked (0.1 s, against 10 s for a fresh interpreter that imports torch). The first rank that
    fails is the cause: its traceback is raised here, and the others are ended.
    """
    if Meeting.most_ranks is not None and world_size > Meeting.most_ranks:
        raise unittest.SkipTest(f"{world_size} ranks, and room for {Meeting.most_ranks}")
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        meeting = Meeting(Path(folder))
        queue = context.SimpleQueue()
        processes = [
            context.Process(target=_rank, args=(rank, world_size, meeting, queue, function, arguments))
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        results: dict[int, Any] = {}
        try:
            for _ in range(world_size):
                rank, failure, result = queue.get()
                if failure is not None:
                    raise AssertionError(f"rank {rank} failed:\n{failure}")
                results[rank] = pickle.loads(result)
        finally:
            for process in processes:
                process.join(timeout=10 if len(results) == world_size else 0.1)
                if process.is_alive():
                    process.kill()
    return [results[rank] for rank in range(world_size)]


def _rank(
    rank: int,
    world_size: int,
    meeting: Meeting,
    queue: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    try:
        torch.set_num_threads(1)
        os.environ.pop("RANK", None)
        meeting.join(rank, world_size)
        # Plain pickle: the queue's own would pass tensors as handles that die with this process.
        queue.put((rank, None, pickle.dumps(function(*arguments))))
        dist.barrier()
    except BaseException:
        queue.put((rank, traceback.format_exc(), None))
        os._exit(1)
    os._exit(0)
