"""The runs of a grid, launched in turn; one that fails is told and the others go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from attnres_train.ablate.grid import RunGrid, logs_folder
from attnres_train.ablate.state import CheckedRun
from attnres_train.errors import ExitCode
from attnres_train.launch.process import STOP_SIGNALS, end_with_parent
from attnres_train.words import counted

_POLL_SECONDS = 0.2


@dataclass
class _Running:
    run: CheckedRun
    process: subprocess.Popen[bytes]
    began: float


@dataclass
class Runner:
    """`tell` takes a line of progress."""

    grid: RunGrid
    tell: Callable[[str], None]
    failed: list[str] = field(default_factory=list)
    """Names of runs that ended otherwise than done."""
    asked: bool = False
    """Whether a signal asked to stop."""
    _running: list[_Running] = field(default_factory=list)
    _paces: list[float] = field(default_factory=list)
    """Seconds a model FLOP of each run that was done here."""

    def run(self, runs: Sequence[CheckedRun]) -> ExitCode:
        """Launch those that are not done, at most `parallel_runs` at once, and wait for all."""
        waiting = [run for run in runs if run.stand != "done"]
        begun = sum(run.stand == "begun" for run in waiting)
        stands = f"{len(runs) - len(waiting)} done, {begun} begun, {len(waiting) - begun} to begin"
        self.tell(f"{counted(len(runs), 'run')}: {stands}")
        logs_folder(self.grid).mkdir(parents=True, exist_ok=True)
        with self._listening():
            while self._running or (waiting and not self.asked):
                while waiting and not self.asked and len(self._running) < self.grid.parallel_runs:
                    self._start(waiting.pop(0))
                for one in [one for one in self._running if one.process.poll() is not None]:
                    self._running.remove(one)
                    self._ended(one, waiting)
                time.sleep(_POLL_SECONDS)
        if self.asked:
            return ExitCode.STOPPED_ON_SIGNAL
        return ExitCode.FAILED if self.failed else ExitCode.DONE

    def _start(self, run: CheckedRun) -> None:
        planned = run.planned
        command = [str(self.grid.launcher), str(self.grid.base), "--ranks", str(self.grid.ranks), *planned.overrides]
        with open(logs_folder(self.grid) / f"{planned.name}.log", "ab") as log:
            process = subprocess.Popen(
                command,
                env=environment_of_runs(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent,
            )
        self._running.append(_Running(run, process, time.monotonic()))
        from_step = f" from step {run.done_steps}" if run.done_steps else ""
        self.tell(f"{planned.name}: begins{from_step}")
        if self.asked:  # the signal came while this one was being started
            process.send_signal(signal.SIGTERM)

    def _ended(self, one: _Running, waiting: Sequence[CheckedRun]) -> None:
        name, code = one.run.planned.name, one.process.returncode
        seconds = time.monotonic() - one.began
        if code == ExitCode.DONE:
            if one.run.flops_left > 0:
                self._paces.append(seconds / one.run.flops_left)
            self.tell(f"{name}: done in {_duration(seconds)}; {self._left(waiting)}")
        elif self.asked and code in (ExitCode.STOPPED_ON_SIGNAL, -signal.SIGTERM):  # the latter before it could listen
            self.tell(f"{name}: stopped and saved; the same command goes on")
        else:
            self.failed.append(name)
            log = logs_folder(self.grid) / f"{name}.log"
            self.tell(f"{name}: ended with code {code} after {_duration(seconds)}; its last lines are in {log}")

    def _left(self, waiting: Sequence[CheckedRun]) -> str:
        """How long the rest takes by the slowest and the fastest pace so far, in seconds a model FLOP."""
        now = time.monotonic()
        if not waiting and not self._running:
            return "none left"
        if not self._paces:
            return "no pace yet to reckon by"
        work = sum(run.flops_left for run in waiting)
        times = []
        for pace in (min(self._paces), max(self._paces)):
            running = sum(max(0.0, one.run.flops_left * pace - (now - one.began)) for one in self._running)
            times.append((work * pace + running) / min(self.grid.parallel_runs, len(waiting) + len(self._running)))
        count = f"{len(waiting) + len(self._running)} left"
        about = " to ".join(dict.fromkeys(map(_duration, times)))
        return f"{count}, about {about} by the pace of {len(self._paces)} so far"

    @contextmanager
    def _listening(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._stop) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        for one in self._running:
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGTERM)


def environment_of_runs() -> dict[str, str]:
    """This process's, and this very Python for the launch scripts: two at once must not install into one folder."""
    return {"ATTNRES_VENV": sys.prefix, **os.environ}


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
