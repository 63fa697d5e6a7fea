"""The ranks compare what must be the same, before any of them computes."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed import distributed_c10d

from attnres_train.errors import Problem, Refused
from attnres_train.launch.facts import version_facts
from attnres_train.observe.console import CONSOLE
from attnres_train.observe.presence import Presence
from attnres_train.parallel.grid import Grid, start_process_group

log = logging.getLogger(CONSOLE)

MOST_CLOCK_SECONDS = 2.0
"""Clocks further apart are told of: times in logs and curves of different nodes do not compare then."""
LEAST_FREE_BYTES = 64 << 20
"""For logs and curves; what checkpoints need is checked where they begin."""


def join(timeout_seconds: int, presence: Presence) -> None:
    """Join the other ranks, and let them know from then on where this one is."""
    presence.at("joining the other ranks")
    try:
        start_process_group(timeout_seconds)
    except dist.DistStoreError as error:
        absent = presence.absent_from_folder()
        who = f"rank {', '.join(map(str, absent[:16]))} did not come; " if absent else ""
        raise ConnectionError(f"{who}{error}".replace("\n", " ")) from error
    if "RANK" in os.environ:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        limit = timedelta(seconds=timeout_seconds)
        presence.join(dist.TCPStore(address, port, is_master=False, timeout=limit, wait_for_workers=False))


def limit_waits(timeout_seconds: int) -> None:
    """Give every group there is the limit that was asked for; megatron-core's take whole minutes only."""
    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_seconds), group)


@dataclass(frozen=True)
class RankReport:
    """What one rank says of itself."""

    host: str
    facts: Mapping[str, str]
    settings: Mapping[str, object]
    data: Mapping[str, str]
    """Fingerprints of the tokenizer and of the corpora."""
    backend: str
    """The depth backend, in words."""
    clock: float
    free_bytes: int
    sees_folder: bool

    def place(self, rank: int) -> str:
        return f"rank {rank} ({self.host})"


def preflight(settings: Mapping[str, object], data: Mapping[str, str], backend: str, folder: Path, grid: Grid) -> None:
    """Refuse, on every rank alike, ranks that would not do the same work. A collective.

    `settings` are all keys of the configuration, `data` are `Corpora.same_on_all_ranks`, `backend` is the depth
    backend in words, each as this rank has them.
    """
    token = [secrets.token_hex(8)]
    dist.broadcast_object_list(token, src=0, group=grid.control)
    sign = folder / "ranks" / f".seen-by-rank-0-{token[0]}"
    if grid.keeps_run:
        sign.touch()
    dist.barrier(group=grid.control)
    mine = RankReport(
        host=socket.gethostname(),
        facts=version_facts(),
        settings=settings,
        data=data,
        backend=backend,
        clock=time.time(),
        free_bytes=shutil.disk_usage(folder).free,
        sees_folder=sign.name in os.listdir(sign.parent),  # a listing, since NFS remembers names that were missing
    )
    everybody = [mine] * grid.world_size
    dist.all_gather_object(everybody, mine, group=grid.control)
    if grid.keeps_run:
        sign.unlink(missing_ok=True)
    if problems := disagreements(everybody, folder):
        raise Refused(problems)
    for note in notes(everybody):
        log.warning(note)


_SAME = {
    "facts": "give every node the same code and libraries",
    "settings": "give every node the same configuration and the same command line",
    "data": "give every node the same pairs and tokenizer; each .json has a pair's checksums",
}
"""What ranks must have alike, and what to do where they do not."""


def disagreements(everybody: Sequence[RankReport], folder: Path) -> list[Problem]:
    """What keeps these ranks from one run; each difference once, with the first rank that has it."""
    problems = []
    first = everybody[0]
    for kind, remedy in _SAME.items():
        for name in dict.fromkeys(name for other in everybody for name in getattr(other, kind)):
            values = [getattr(other, kind).get(name) for other in everybody]
            if (rank := _first_other(values)) is not None:
                message = f"{values[0]!r} on {first.place(0)}, {values[rank]!r} on {everybody[rank].place(rank)}"
                problems.append(Problem(name, message, remedy))
    # By name: the reason for it, in parentheses, may hold a path or an address of its own on every rank. Backends round
    # differently, and tensor ranks hold copies of the norms that no reduction keeps equal.
    if (rank := _first_other([other.backend.partition(" (")[0] for other in everybody])) is not None:
        what = f"{first.place(0)} would use {first.backend}, {everybody[rank].place(rank)} {everybody[rank].backend}"
        remedy = 'make the machines alike, or name one: residual.backend = "lean"'
        problems.append(Problem("residual.backend", f"{what}: they round differently", remedy))
    blind = [other.place(rank) for rank, other in enumerate(everybody) if not other.sees_folder]
    if blind:
        what = f"{folder} is not one folder: {', '.join(blind[:4])} cannot see what {first.place(0)} writes there"
        remedy = "put it on a file system that all nodes share: every rank writes its part of a checkpoint there"
        problems.append(Problem("training.run_folder", what, remedy))
    least = min(everybody, key=lambda other: other.free_bytes)
    if least.free_bytes < LEAST_FREE_BYTES:
        what = f"{least.free_bytes >> 20} MiB are free for {folder} on {least.host}"
        problems.append(Problem("training.run_folder", what, f"free at least {LEAST_FREE_BYTES >> 20} MiB"))
    return problems


def _first_other(values: Sequence[object]) -> int | None:
    """The first rank whose value is not that of rank 0."""
    return next((rank for rank, value in enumerate(values) if value != values[0]), None)


def notes(everybody: Sequence[RankReport]) -> list[str]:
    """What is no problem and yet worth a line."""
    clocks = [other.clock for other in everybody]
    apart = max(clocks) - min(clocks)
    if apart <= MOST_CLOCK_SECONDS:
        return []
    early, late = clocks.index(min(clocks)), clocks.index(max(clocks))
    places = f"{everybody[late].place(late)} is ahead of {everybody[early].place(early)}"
    return [f"clocks are {apart:.1f} s apart: {places}; times of different nodes do not compare"]
