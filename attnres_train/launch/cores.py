"""How many threads a rank computes with on CPUs, where nobody has said it.

A rank with a GPU makes initial weights and may run its optimizer on CPUs, and torchrun tells every rank to use one
thread. Ranks that train on CPUs do use one each: they would spin at each other's barriers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

THREADS = "OMP_NUM_THREADS"


def usable_cores(root: Path = Path("/")) -> int:
    """Cores of this process: those it may run on, or fewer where a container's share of their time is less."""
    return max(1, min([len(os.sched_getaffinity(0)), *_quotas(root)]))


def _quotas(root: Path) -> Iterator[int]:
    """Whole cores' worth of time that this process's control groups allow, both kinds; `root` is the file system's."""
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    own = next((Path(line.removeprefix("0::").lstrip("/")) for line in lines if line.startswith("0::")), Path())
    for folder in (own, *own.parents):
        yield from _cores(_words(groups / folder / "cpu.max"))
    first = groups / "cpu"
    yield from _cores(_words(first / "cpu.cfs_quota_us") + _words(first / "cpu.cfs_period_us"))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []


def _cores(quota_and_period: list[str]) -> Iterator[int]:
    if len(quota_and_period) == 2 and all(map(str.isdecimal, quota_and_period)):  # not "max", not -1
        quota, period = map(int, quota_and_period)
        yield quota // period


def threads_with_gpus(cores: int, ranks: int) -> int:
    """Of each of the `ranks` that share a node's cores."""
    return max(1, cores // ranks)


def untold_threads(
    environment: Mapping[str, str], launchers: Mapping[str, str] | None, on_gpu: bool, cores: int, ranks: int
) -> int | None:
    """Threads of a rank that nobody has told; None where somebody has, or for a rank alone on CPUs, which takes all.

    `launchers` is the environment that the rank's parent was started with: torchrun writes a 1 of its own into that of
    the ranks.
    """
    told = environment.get(THREADS)
    of_torchrun = told == "1" and launchers is not None and THREADS not in launchers
    if told and not of_torchrun:
        return None
    if on_gpu:
        return threads_with_gpus(cores, ranks)
    return 1 if ranks > 1 else None


def environment_of(process: int, root: Path = Path("/")) -> dict[str, str] | None:
    """The environment that `process` was started with; None where the system does not say."""
    try:
        whole = (root / "proc" / str(process) / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return None
    return dict(line.partition("=")[::2] for line in whole.split("\0") if line)
