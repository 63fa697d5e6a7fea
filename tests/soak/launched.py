"""One launch of a run under the real launch script: its processes, what it says, how far it is, how it is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from attnres_train.checkpoint.folder import checkpoints_folder, named_steps
from tests.end_to_end.conftest import ROOT

METADATA_FILE = ".metadata"
"""The first file that rank 0 writes when all ranks have written (checkpoint/metadata.py imports torch)."""
_MARK = "ATTNRES_SOAK_LAUNCH"
"""In the environment of every process of a launch, whoever its parent is by now."""
_STEP = re.compile(r"step +(\d+)/\d+  loss")
_SAYS_STEP = re.compile(r"step +\d+(/\d+  loss|  validation loss)")
_BEGINS = re.compile(r"(?:starting|resuming .*) at step (\d+)[:,]")
_DURABLE = re.compile(r"checkpoint durable: \S*step-(\d+)")

PHASES = (
    "script", "torchrun", "ranks start", "before the first step", "step", "evaluation", "retention", "writing",
    "publishing",
)  # fmt: skip


class Intervals(NamedTuple):
    """Steps between saves and between evaluations."""

    save: int
    evaluation: int


class Launch:
    """`command` from its start to the end of its last process."""

    def __init__(self, command: Sequence[str], scratch: Path, number: int, run: Path, intervals: Intervals):
        self.number, self.run, self._intervals = number, run, intervals
        self.output = scratch / f"launch-{number:04d}.txt"
        self._mark = f"{_MARK}={scratch}/{number}".encode()
        self._stale = set(self._partials())
        (scratch / "tmp").mkdir(exist_ok=True)
        environment = os.environ | {_MARK: f"{scratch}/{number}", "TMPDIR": str(scratch / "tmp")}
        with open(self.output, "wb") as file:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.started = self._moved = time.monotonic()
        self._signature: object = None
        self._known: dict[int, str] = {}
        self._tail = open(self.output, encoding="utf-8")  # noqa: SIM115 - read until the launch is done with
        self.began_at: int | None = None
        """The step it resumed at; None until it has said so."""
        self.steps, self.last_step, self.durable, self.last_line = 0, 0, 0, ""
        self.first_step_seconds: float | None = None

    @property
    def age(self) -> float:
        return time.monotonic() - self.started

    def read(self) -> None:
        """Take in what was said since."""
        for line in self._tail:
            self.last_line = line
            if found := _STEP.match(line):
                self.steps, self.last_step = self.steps + 1, int(found[1])
                self.first_step_seconds = self.first_step_seconds or self.age
            elif found := _BEGINS.match(line):
                self.began_at = int(found[1])
            elif found := _DURABLE.search(line):
                self.durable = int(found[1])

    def is_stuck(self, patience: float) -> bool:
        """Whether nothing has been written, and no process has come or gone, for `patience` seconds."""
        logs = [path.stat().st_size for path in (self.run / "logs").glob("*.log")]
        self._known = self.pids()
        signature = (self.output.stat().st_size, logs, self._known)
        if signature != self._signature:
            self._signature, self._moved = signature, time.monotonic()
        return time.monotonic() - self._moved > patience

    def pids(self) -> dict[int, str]:
        """Every living process of the launch, and what it is: `script`, `torchrun`, `rank` or `other`."""
        return {int(path.name): role for path in Path("/proc").iterdir() if (role := self._role(path))}

    def _role(self, process: Path) -> str | None:
        if not process.name.isdigit():
            return None
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes()
        except OSError:
            return None
        if self._mark not in environment:
            return None
        if int(process.name) == self.process.pid:
            return "script"
        if b"attnres_train.train" not in command:
            return "other"
        return "rank" if any(entry.startswith(b"RANK=") for entry in environment) else "torchrun"

    def kill(self, target: str, choice: float) -> tuple[str, str]:
        """SIGKILL to `target`, or to everything where it does not exist yet; what was hit, and in which phase.

        `choice` from 0 to 1 says which rank. What is to die is stopped first, so that the phase is the one it dies in.
        """
        # Looking for processes takes longer than to publish a checkpoint; once it trains they stay the same.
        alive = self._known if self.steps and "rank" in self._known.values() else self.pids()
        hit = [pid for pid, role in sorted(alive.items()) if role == target.removesuffix("s")]
        if target == "rank":
            hit = hit[int(choice * len(hit)) :][:1]
        if not hit:
            target, hit = "everything", []
        stopped: set[int] = set()
        fresh = set(hit or alive)
        while fresh:
            signalled(fresh, signal.SIGSTOP)
            stopped |= fresh
            fresh = set() if hit else set(self.pids()) - stopped  # who was being forked meanwhile
        self.read()
        phase = self.phase(set(alive.values()))
        signalled(stopped, signal.SIGKILL)
        return target, phase

    def phase(self, roles: set[str]) -> str:
        """How far it is, by what it said and by what is in its folder; `roles` are those of its processes."""
        if "rank" not in roles:
            return "torchrun" if "torchrun" in roles else "script"
        if self.began_at is None:
            return "ranks start"
        if not self.steps:
            return "before the first step"
        partials = self.partials()
        if self.is_named or self.is_written:
            return "publishing"
        if any(".deleted" in path.name for path in partials) or (self.saves and not partials and not self.evaluates):
            return "retention"
        if partials:
            return "writing"
        return "evaluation" if self.evaluates else "step"

    @property
    def saves(self) -> bool:
        """Whether a save is due and has not been said to have begun; older checkpoints go first."""
        return bool(_SAYS_STEP.match(self.last_line)) and self.last_step % self._intervals.save == 0

    @property
    def is_written(self) -> bool:
        """Whether all ranks have written, and rank 0 makes a whole checkpoint of it."""
        return any((path / METADATA_FILE).exists() for path in self.partials())

    @property
    def is_named(self) -> bool:
        """Whether a checkpoint has its name and has not been said to be durable."""
        newest = max(named_steps(checkpoints_folder(self.run)), default=0)
        return newest > max(self.durable, self.began_at or 0)

    @property
    def evaluates(self) -> bool:
        """Whether an evaluation is due and has not been said to be over."""
        return bool(_STEP.match(self.last_line)) and self.last_step % self._intervals.evaluation == 0

    def partials(self) -> list[Path]:
        """Folders of unfinished saves and deletions that are this launch's own."""
        return [path for path, changed in self._partials() if (path, changed) not in self._stale]

    def _partials(self) -> list[tuple[Path, int]]:
        found = []
        for path in checkpoints_folder(self.run).glob(".*.partial"):
            try:
                found.append((path, path.stat().st_mtime_ns))
            except FileNotFoundError:
                continue
        return found

    def wait_until_gone(self, patience: float) -> list[str]:
        """Wait for the end of all processes; those that are left after `patience` seconds are told and killed."""
        deadline = time.monotonic() + patience
        while (alive := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.05)
        told = [f"{role} {pid} ({_waits_in(pid)})" for pid, role in alive.items()]
        while alive:
            signalled(alive, signal.SIGKILL)
            time.sleep(0.05)
            alive = self._alive()
        self.read()
        return told

    def _alive(self) -> dict[int, str]:
        self.process.poll()
        return self.pids()

    def close(self) -> None:
        """Leave nothing running."""
        self.wait_until_gone(0)
        self._tail.close()


def signalled(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _waits_in(pid: int) -> str:
    """The kernel function in which the first thread of a process waits."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return "gone"
