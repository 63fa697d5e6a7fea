"""The launcher of a job and its ranks, from the start to the end of the last process.

Launchers wait long or for ever for ranks that do not answer, die without their ranks, and take a rank that ends
early with code 0 for done. So the job is watched here: once a rank has failed, or the launcher is gone, the rest has
seconds; when the script is asked to stop, ranks have minutes to save.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

from attnres_train.launch.commands import gated
from attnres_train.launch.missing import Sightings, waited_in_vain
from attnres_train.launch.process import alive, end_with_parent, is_stopped, job_processes, send
from attnres_train.launch.record import (
    FAILURES,
    Record,
    failure_file,
    newest,
    read_records,
    shared_folder,
    write_record,
)
from attnres_train.launch.verdict import (
    LauncherWords,
    Verdict,
    first_cause,
    is_own_word,
    judge,
    killed_launcher,
    silent_ends,
)

POLL_SECONDS = 0.2
SECONDS_AFTER_FAILURE = 15.0
"""From a rank's failure, or the launcher's end, to SIGKILL for what is left."""
SECONDS_AFTER_STOP = 630.0
"""From a stop signal to SIGKILL: the launcher's own patience with ranks that save, and a little."""
SECONDS_BETWEEN_OTHER_NODES = 2.0
"""How often a sign of other nodes is looked for, in a folder that may be far away."""
SECONDS_FOR_OTHER_NODES = 5.0
"""How long the word of another node is waited for that may know the cause."""


class Job:
    """`command` as the launcher of the ranks `local`; `job` is the folder of their records.

    The launcher imports from now on; it begins with `run`, or is ended with the context of this object.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        job: Path,
        local: Collection[int],
        *,
        direct: bool = False,
        remote: Path | None = None,
        alone: bool = False,
    ):
        self.job, self.local, self.remote = job, local, remote
        """`remote`: ranks run on other machines, and their records are in this folder, which is shared."""
        self.alone = alone
        """There is no other node."""
        self.direct = direct
        """`direct`: a stop signal goes to the ranks, since this launcher kills them if they save for long."""
        self.began = time.time()
        self.asked = False
        self.words = LauncherWords.none()
        self._told = job / "launcher.log"
        self._lock = threading.Lock()
        self.launcher = subprocess.Popen(
            gated(command, str(self._told)), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, preexec_fn=end_with_parent,
        )  # fmt: skip
        assert self.launcher.stdout is not None and self.launcher.stderr is not None
        pipes = ((self.launcher.stdout, sys.stdout), (self.launcher.stderr, sys.stderr))
        self._pumps = [threading.Thread(target=self._pump, args=pipe, daemon=True) for pipe in pipes]
        for pump in self._pumps:
            pump.start()
        self._ended_here: set[int] = set()
        """Ranks that were killed because another one had failed."""
        self._failed_at: float | None = None
        self._asked_others_at = time.monotonic()
        self._asked_at: float | None = None
        self._sightings = Sightings()
        self._at_failure: Mapping[int, Record] = {}
        self._shared: set[Path] = set()
        """Where the ranks leave their records beside the job's folder."""

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.launcher.poll() is None:
            self.launcher.kill()
            self.launcher.wait()

    def stop(self) -> None:
        """Ask the ranks to save and end; once."""
        if self.asked:
            return
        self.asked, self._asked_at = True, time.monotonic()
        ranks = {record.pid for record in self._read().values()}
        send([rank for rank in ranks if self.remote is None and is_stopped(rank)], signal.SIGCONT)  # else it cannot
        if self.direct and alive(ranks):
            send(ranks, signal.SIGTERM)
        elif self.launcher.poll() is None:
            send([self.launcher.pid], signal.SIGTERM)

    def run(self) -> Verdict:
        """Let the launcher begin and wait for the end of every process, or bring it about; then judge."""
        assert self.launcher.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.launcher.stdin as gate:
            gate.write(b"begin\n")
        while self.launcher.poll() is None or job_processes(self.job):
            self._look()
            time.sleep(POLL_SECONDS)
        for pump in self._pumps:
            pump.join(timeout=2)
        words = self._told.read_text(encoding="utf-8", errors="replace") if self._told.exists() else ""
        for line in words.splitlines():
            self.words.hear(line)
        records = self._records()
        code = self.launcher.returncode
        deadline = time.monotonic() + SECONDS_FOR_OTHER_NODES
        while _waits_for_others(records, self.local, code) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            records = self._records()
        elsewhere = any(sign.exists() for sign in self._signs(records))
        verdict = judge(records, self.local, code, self.asked, elsewhere, self.alone)
        self._keep(words, records, verdict)
        return verdict

    def _keep(self, words: str, records: Mapping[int, Record], verdict: Verdict) -> None:
        """What the launcher itself said: into the folder of the logs, and to the terminal where no rank says more."""
        if verdict.unexplained:
            print(words, end="", file=sys.stderr)
        logs = [Path(record.log).parent for record in records.values() if record.log]
        if words and logs and self.local:
            with contextlib.suppress(OSError), open(logs[0] / f"launcher-{min(self.local):04d}.log", "a") as log:
                log.write(words)

    def _read(self) -> dict[int, Record]:
        """The records of the ranks that this launcher has started: in the run folder, if who cleans up temporary
        folders took theirs."""
        if self.remote is None and (here := read_records(self.job)):
            self._shared = {shared_folder(record.log) for record in here.values() if record.log}
            return here
        folders = self._shared if self.remote is None else {self.remote}
        there = {rank: record for folder in folders for rank, record in read_records(folder).items()}
        return {rank: record for rank, record in there.items() if record.time > self.began - 5 and rank in self.local}

    def _running(self, records: Mapping[int, Record]) -> set[int]:
        processes = [record.pid for record in records.values()]
        return alive(processes) if self.remote is None else set(processes)

    def _look(self) -> None:
        """Note a failure, and end what is left after the time that is due to it."""
        now = time.monotonic()
        if self._failed_at is None and self._has_failed():
            self._failed_at, self._at_failure = now, self._everybody(self._read())
        if self.launcher.poll() is not None and self._failed_at is None and not self.asked:
            self._failed_at = now
            if killed_launcher(self.launcher.returncode):
                self._sign_failure()
            send(job_processes(self.job), signal.SIGTERM)
        late = self._failed_at is not None and now > self._failed_at + SECONDS_AFTER_FAILURE
        if late or (self._asked_at is not None and now > self._asked_at + SECONDS_AFTER_STOP):
            left = job_processes(self.job)
            self._note(left)
            send(left, signal.SIGKILL)

    def _has_failed(self) -> bool:
        records = self._read()
        self._sightings.note(records, time.monotonic())
        gone = set(records) & set(self.local)
        running = self._running(records)
        for rank in gone:
            record = records[rank]
            if record.end in FAILURES:
                return True
            if record.end is None and record.pid not in running:
                return True
        return self._has_failed_elsewhere(records)

    def _has_failed_elsewhere(self, mine: Mapping[int, Record]) -> bool:
        """Whether a rank of another node has. Those here may stand still, and so never notice."""
        now = time.monotonic()
        if now < self._asked_others_at + SECONDS_BETWEEN_OTHER_NODES:
            return False
        self._asked_others_at = now
        return any(sign.exists() for sign in self._signs(mine))

    def _signs(self, mine: Mapping[int, Record]) -> set[Path]:
        """Files that are there if a rank or a launcher of this launch has failed, on whichever node."""
        own = [mine[rank] for rank in self.local if rank in mine]
        return {failure_file(shared_folder(r.log), r.meeting) for r in own if r.log and r.meeting}

    def _sign_failure(self) -> None:
        for sign in self._signs(self._read()):
            with contextlib.suppress(OSError):
                sign.touch()

    def _note(self, left: Collection[int]) -> None:
        """Which ranks are going to be killed: that is no cause. Of those that stand still by a signal, say so."""
        for rank, record in read_records(self.job).items():
            if rank in self.local and record.pid in left and record.end is None:
                if is_stopped(record.pid):
                    record.end = "killed"
                    record.reason = "its process was stopped by a signal (SIGSTOP) and did not go on"
                    self._spread(record)
                else:
                    self._ended_here.add(rank)

    def _records(self) -> dict[int, Record]:
        """What this node's ranks left, with those that left no word; and what is known of the others."""
        mine = self._read()
        running = set() if self.remote else self._running(mine)
        own_ends = [rank for rank in self.local if rank not in self._ended_here]
        silent = silent_ends(mine, own_ends, running, self.words, time.time())
        operations = {record.rank: name for record in silent if (name := self.words.waited(record)) is not None}
        waited_in_vain(silent, operations, self._sightings.before, self._at_failure)
        for record in silent:
            mine[record.rank] = record
            self._spread(record)
        return self._everybody(mine)

    def _everybody(self, mine: Mapping[int, Record]) -> dict[int, Record]:
        """`mine`, and what the ranks of other nodes left in the run folder, if it is shared."""
        folders = {shared_folder(record.log) for record in mine.values() if record.log}
        theirs = [r for folder in folders for r in read_records(folder).values() if r.time > self.began - 5]
        return newest(theirs) | dict(mine)

    def _spread(self, record: Record) -> None:
        """Write what was found out about a rank where the other nodes may see it."""
        for folder in {self.job, *([shared_folder(record.log)] if record.log else [])}:
            write_record(record, folder)

    def _pump(self, source: IO[bytes], sink: IO[str]) -> None:
        """Pass on, line by line, what the ranks say, and listen to what their launcher says between it."""
        rest = b""
        while piece := os.read(source.fileno(), 65536):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._pass_on(line + b"\n", sink)
        self._pass_on(rest, sink)

    def _pass_on(self, line: bytes, sink: IO[str]) -> None:
        text = line.decode(errors="replace")
        if is_own_word(text):
            with self._lock, contextlib.suppress(OSError), open(self._told, "a", encoding="utf-8") as told:
                told.write(text)
            return
        self.words.hear(text)
        with contextlib.suppress(OSError, ValueError):
            os.write(sink.fileno(), line)


def _waits_for_others(records: Mapping[int, Record], local: Collection[int], launcher_code: int) -> bool:
    """Whether this node failed by another's failure that nobody has told of yet."""
    cause = first_cause(list(records.values()))
    if launcher_code == 0 or cause is None:
        return False
    return cause.end == "lost" or (cause.end == "timeout" and cause.rank in local)
