"""Processes as Linux shows them: who belongs to a job, who is alive, and being told when the parent ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from attnres_train.launch.record import JOB

PARENT = "ATTNRES_PARENT"
"""The environment variable by which ranks know the process that must be there: see `parent_mark`."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""By which scripts, ranks and whoever relaunches them are asked to save and end."""
LAUNCHER_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
"""By which a launcher is asked to end its ranks. Torchrun heeds SIGQUIT unless told otherwise; to a rank it is a way to
end at once with a core."""
_PR_SET_PDEATHSIG = 1
"""prctl's request that the kernel signals this process when its parent ends (linux/prctl.h)."""


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send this process `number` when its parent ends; a parent that has ended sends nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))


def parent_has_ended(first_parent: int) -> bool:
    """Whether the launcher of this rank is gone already; to be asked after `end_with_parent`.

    `first_parent`: the parent as it was seen before. What ended earlier than that is known by the script's mark, or
    by being a child of process 1 where that is no launcher.
    """
    if os.getppid() != first_parent or (PARENT in os.environ and is_gone(os.environ[PARENT])):
        return True
    if os.getppid() != 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    return b"torch" not in Path("/proc/1/cmdline").read_bytes()


def raise_file_limit() -> None:
    """As many open files as the system allows this process: gloo holds a connection to every rank in every group."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def file_limit() -> int | None:
    """How many files this process may open at most; None for any number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def parent_mark(process: int) -> str:
    """Names `process` for good: machine, process and the moment it began."""
    return f"{_boot()} {process} {_stat(process)[1]}"


def is_gone(mark: str) -> bool:
    """Whether the process of a `parent_mark` has ended; False where it is another machine's."""
    boot, process, began = mark.split()
    if boot != _boot():
        return False
    state, since = _stat(int(process))
    return since != began or state in "ZX"


def output_is_closed(descriptor: int) -> bool:
    """Whether nobody reads any more what is written to `descriptor`, a pipe or socket."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def is_stopped(process: int) -> bool:
    """Whether `process` stands still by a signal (SIGSTOP)."""
    return _stat(process)[0] in "Tt"


def alive(processes: Iterable[int]) -> set[int]:
    return {process for process in processes if _stat(process)[0] not in "ZX"}


def job_processes(job: Path) -> set[int]:
    """Every process that carries the mark of `job` in its environment, whoever its parent is by now."""
    mark, found = f"{JOB}={job}\0".encode(), set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "environ").read_bytes() + b"\0":
                    found.add(int(entry.name))
            except OSError:
                continue
    return alive(found)


def send(processes: Iterable[int], number: signal.Signals) -> None:
    """Send `number` to every one that is there."""
    for process in processes:
        try:
            os.kill(process, number)
        except (ProcessLookupError, PermissionError):
            continue


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _stat(process: int) -> tuple[str, str]:
    """State and moment of the start of `process`; X where it is not there."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", "0"
    return fields[0], fields[19]
