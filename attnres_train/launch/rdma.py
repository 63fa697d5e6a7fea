"""Whether NCCL will find the InfiniBand or RoCE of this machine. Where it does not it uses TCP, and says so nowhere."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable
from pathlib import Path

VERBS = "libibverbs.so.1"
"""What NCCL opens at run time."""
_IPC_LOCK = 14
"""The capability to lock any amount of memory (linux/capability.h)."""


def why_tcp(
    root: Path = Path("/"), load: Callable[[str], object] = ctypes.CDLL, memlock_bytes: int | None = None
) -> str | None:
    """Why devices for RDMA that this machine has cannot be used here, and the remedy; None where nothing is wrong.

    `root` is the file system's, `load` opens a library, `memlock_bytes` is the limit of locked memory, None the
    process's own.
    """
    names = sorted(path.name for path in (root / "sys/class/infiniband").glob("*"))
    if not names:
        return None
    ways = [os.access(path, os.R_OK | os.W_OK) for path in (root / "dev/infiniband").glob("uverbs*")]
    if not any(ways):
        what = "may not be opened by this user" if ways else "is not there"
        remedy = "docker run --device /dev/infiniband; in Kubernetes ask for the resource of the RDMA device plugin"
        return _told(names, f"/dev/infiniband/uverbs0 {what}", remedy)
    try:
        load(VERBS)
    except OSError:
        return _told(names, f"{VERBS} is not installed", "apt-get install libibverbs1 ibverbs-providers")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if memlock_bytes is None else memlock_bytes
    if limit != resource.RLIM_INFINITY and not _may_lock(root):
        remedy = "ulimit -l unlimited (limits.conf; docker run --ulimit memlock=-1), or the capability IPC_LOCK"
        return _told(names, f"a process may lock {limit >> 10:,} KiB of memory only", remedy)
    return None


def _told(names: list[str], why: str, remedy: str) -> str:
    return f"NCCL would use TCP beside {', '.join(names[:4])}: {why}; {remedy}"


def _may_lock(root: Path) -> bool:
    try:
        lines = (root / "proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")]
    return any(mask >> _IPC_LOCK & 1 for mask in masks)
