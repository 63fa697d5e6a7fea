"""Relaunch a run that failed, from its newest checkpoint, as long as it makes progress.

    python -m attnres_train.supervise [--pause SECONDS] -- launch/torchrun.sh CONFIG.toml ...

What ends otherwise than by a failure is not launched again: done (0), refused (2), stopped on a signal (3). After a
failure the launch is repeated if it got further than the one before; it is not if no rank came to a step, if the same
step failed twice, or if there is neither a newer checkpoint nor a later step. On several nodes run this on every one:
all see the same run folder and decide alike.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from attnres_train.checkpoint.folder import checkpoints_folder, named_steps
from attnres_train.config.load import load
from attnres_train.config.overrides import separate
from attnres_train.config.resolve import run_folder
from attnres_train.console_encoding import print_every_character
from attnres_train.errors import ExitCode, Refused
from attnres_train.launch.options import SCRIPT_FLAGS
from attnres_train.launch.process import STOP_SIGNALS, end_with_parent
from attnres_train.launch.record import read_records
from attnres_train.observe.claim import is_claimed

SECONDS_FOR_RANKS = 600.0
"""How long ranks may save that have lost their launch, as long as those that were asked to stop."""


class Attempt(NamedTuple):
    """How far one launch came."""

    reached: int | None
    """The step in which it failed; None if no rank came to one."""
    checkpoint: int
    """Of the newest checkpoint afterwards; 0 for none."""


def why_not_again(attempts: Sequence[Attempt]) -> str | None:
    """Why a run that failed like this is not launched again; None where it is. `attempts`: the newest is the last."""
    last = attempts[-1]
    if last.reached is None:
        return "it failed before its first step"
    for before in attempts[:-1]:
        if before.reached == last.reached:
            return f"step {last.reached} failed twice"
    if len(attempts) > 1:
        furthest = max(attempt.reached or 0 for attempt in attempts[:-1])
        if last.reached < furthest and last.checkpoint <= attempts[-2].checkpoint:
            return f"no progress: step {last.reached} after {furthest}, no checkpoint after step {last.checkpoint}"
    return None


class Supervisor:
    """The launches of `command`, one at a time."""

    def __init__(self, command: Sequence[str], folder: Path):
        self.command, self.folder = command, folder
        self.child: subprocess.Popen[bytes] | None = None
        self.asked = False
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        if self.child is not None:
            self.child.send_signal(signal.SIGTERM)

    def run(self, pause_seconds: float) -> int:
        """Launch until an end that is final; its exit code."""
        attempts: list[Attempt] = []
        while not self.asked:
            began = time.time()
            self.child = subprocess.Popen(self.command, preexec_fn=end_with_parent)
            code = self.child.wait()
            if code in (ExitCode.DONE, ExitCode.REFUSED, ExitCode.STOPPED_ON_SIGNAL) or self.asked:
                return code if code >= 0 else ExitCode.FAILED
            self._wait_for_ranks()
            attempts.append(self._outcome(began))
            if reason := why_not_again(attempts):
                print(f"supervise: not launched again: {reason}", file=sys.stderr, flush=True)
                return ExitCode.FAILED
            where = f"failed in step {attempts[-1].reached}, newest checkpoint {attempts[-1].checkpoint or 'none'}"
            print(f"supervise: launch {len(attempts)} {where}; launching again", file=sys.stderr, flush=True)
            self._pause(pause_seconds)
        return ExitCode.STOPPED_ON_SIGNAL

    def _wait_for_ranks(self) -> None:
        """Ranks that outlived their launch still save: what they reach counts, and the folder is theirs until then."""
        deadline = time.monotonic() + SECONDS_FOR_RANKS
        while is_claimed(self.folder) and time.monotonic() < deadline and not self.asked:
            time.sleep(0.2)

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.asked:
            time.sleep(0.1)

    def _outcome(self, began: float) -> Attempt:
        records = read_records(self.folder / "ranks").values()
        steps = [record.step for record in records if record.step is not None and record.time >= began]
        checkpoints = named_steps(checkpoints_folder(self.folder))
        return Attempt(max(steps, default=None), max(checkpoints, default=0))


def folder_of(command: Sequence[str]) -> Path:
    """The run folder of a launch command.

    Raises Refused where the configuration cannot be read.
    """
    own, overrides = separate(command, SCRIPT_FLAGS)
    config = next((word for word in own if word.endswith(".toml")), command[-1])
    return run_folder(load(config, overrides).config, config)


def main() -> int:
    print_every_character()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pause", type=float, default=10, metavar="SECONDS", help="between launches (%(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="print what is launched and start nothing")
    parser.add_argument("--where", action="store_true", help="print the run folder and start nothing")
    parser.add_argument("command", nargs="+", help="a launch script and its arguments, after --")
    options = parser.parse_args()
    try:
        folder = folder_of(options.command)
    except Refused as refusal:
        print(f"refused:\n{refusal}", file=sys.stderr)
        return ExitCode.REFUSED
    if options.where:
        print(folder)
        return ExitCode.DONE
    if options.dry_run:
        print(f"run folder {folder}; until it is done: {' '.join(options.command)}")
        return ExitCode.DONE
    return Supervisor(options.command, folder).run(options.pause)


if __name__ == "__main__":
    sys.exit(main())
