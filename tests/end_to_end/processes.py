"""The processes of a launched run, found through /proc."""

from __future__ import annotations

import time
from pathlib import Path


def rank_process(launcher: int, rank: int = 1) -> int | None:
    """The process of `rank` under the launch script, None while it is not there."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and "attnres_train.train" in read(entry / "cmdline").replace("\0", " "):
            if f"\0RANK={rank}\0" in "\0" + read(entry / "environ") and str(launcher) in ancestors(int(entry.name)):
                return int(entry.name)
    return None


def wait_for_rank(launcher: int, rank: int = 1, seconds: float = 120) -> int:
    """The process of `rank`, as soon as it is there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (process := rank_process(launcher, rank)) is not None:
            return process
        time.sleep(0.01)
    raise AssertionError(f"rank {rank} is not running")


def wait_until_caught(process: int, number: int, seconds: float = 120) -> None:
    """Until `process` has a handler for the signal `number`."""
    deadline = time.monotonic() + seconds
    while not int(_status(process).get("SigCgt", "0"), 16) >> (number - 1) & 1:
        assert time.monotonic() < deadline, f"process {process} does not listen to signal {number}"
        time.sleep(0.01)


def read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def ancestors(process: int) -> list[str]:
    """Parents of `process`, the nearest first."""
    chain = []
    while process > 1:
        process = int(_status(process).get("PPid", "0"))
        chain.append(str(process))
    return chain


def _status(process: int) -> dict[str, str]:
    lines = read(Path(f"/proc/{process}/status")).splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
