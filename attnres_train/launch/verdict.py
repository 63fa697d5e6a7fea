"""Which of several endings is the cause. Pure: records in, words and an exit code out.

A lost connection or a wait in vain is what other ranks see of a failure, so it is the cause only where nobody
has an error of his own, and then what is told is who was missing.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from attnres_train.errors import ExitCode
from attnres_train.launch.missing import heard_of_watchdog
from attnres_train.launch.process import LAUNCHER_STOPS
from attnres_train.launch.record import FAILURES, Record

_RANK = re.compile(r"^\s*rank\s*: (\d+) \(local_rank: \d+\)\s*$")
_CODE = re.compile(r"^\s*exitcode\s*: (-?\d+) \(pid: (\d+)\)\s*(\(SIG\w+\))?\s*$")
_TORCHRUN = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: \d+ \(pid: (\d+)\)")
_DEEPSPEED = re.compile(r"exits with return code = (-\d+)")
_OWN_WORD = re.compile(r"(\S+: )?\[[-\d :,]+\] \[[A-Z]+\] \[(launch|runner|multinode_runner)\.py:")
"""How a line of DeepSpeed's launchers begins, also of one on another host."""


REFUSED = "refused; nothing was trained (exit code 2)"
"""The last line of every refusal."""


class Verdict(NamedTuple):
    code: ExitCode
    lines: list[str]
    """What is said last; the cause comes first. Empty where nothing needs to be said."""
    unexplained: bool = False
    """No rank says why: what the launcher itself has said may."""


@dataclass
class LauncherWords:
    """What the launcher said of the ends of its ranks."""

    by_pid: dict[int, int]
    by_rank: dict[int, int]
    any_signal: int | None = None
    watchdogs: dict[int, str] = field(default_factory=dict)
    """By rank: the operation that its watchdog says it waited for in vain, and which the launcher takes for a crash."""
    _rank: int | None = None

    @classmethod
    def none(cls) -> LauncherWords:
        return cls({}, {})

    def hear(self, line: str) -> None:
        if found := _RANK.match(line):
            self._rank = int(found[1])
        elif found := _CODE.match(line) or _TORCHRUN.search(line):
            self.by_pid[int(found[2])] = int(found[1])
            if self._rank is not None:
                self.by_rank[self._rank] = int(found[1])
            self._rank = None
        elif found := _DEEPSPEED.search(line):
            self.any_signal = int(found[1])
        elif heard := heard_of_watchdog(line):
            self.watchdogs.setdefault(*heard)

    def of(self, rank: int, pid: int | None) -> int | None:
        """The exit code of a rank, negative for a signal; None if the launcher did not say."""
        if pid is not None and pid in self.by_pid:
            return self.by_pid[pid]
        return self.by_rank.get(rank, self.any_signal)

    def waited(self, record: Record) -> str | None:
        """For what the rank of `record` waited in vain until its watchdog aborted it; None if it ended otherwise.

        What the watchdog said may have gone elsewhere: a rank that stood in a wait, and aborted, is one as well. How it
        ended is unknown where the launcher was itself ended while it waited for the rank that hangs.
        """
        code = self.of(record.rank, record.pid)
        aborted = code == -signal.SIGABRT or (code is None and bool(self.watchdogs))
        return self.watchdogs.get(record.rank, record.stuck if record.waits and aborted else None)


def is_own_word(line: str) -> bool:
    """Whether `line`, between those of the ranks, is DeepSpeed's launcher's own. torchrun's come apart from them."""
    return _OWN_WORD.match(line) is not None


def killed_in_words(code: int | None) -> str:
    """How a rank ended that left no word."""
    if code is None:
        return "ended without a word: killed by signal 9 (most often memory), or it left by itself"
    if code >= 0:
        return f"ended with code {code} before the run was done"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    memory = ": most often memory, see `dmesg` or the container's limit" if -code == signal.SIGKILL else ""
    return f"killed by signal {-code} ({name}){memory}"


def silent_ends(
    records: Mapping[int, Record], local: Collection[int], alive: Collection[int], words: LauncherWords, now: float
) -> list[Record]:
    """Records for the `local` ranks that ended without a word. `alive` are the processes there are.

    A rank whose record is missing died before it could write one.
    """
    found = []
    for rank in local:
        record = records.get(rank)
        if record is None:
            if (code := words.of(rank, None)) is not None:
                # Launchers end the others by SIGTERM: after the one that failed.
                then = now + (code == -signal.SIGTERM)
                found.append(Record(rank, "this host", 0, now, then, end="killed", reason=killed_in_words(code)))
        elif record.end is None and record.pid not in alive:
            record.end, record.reason = "killed", killed_in_words(words.of(rank, record.pid))
            found.append(record)
    return found


def first_cause(records: Collection[Record]) -> Record | None:
    """The record that tells why the run failed; None if none does."""
    own = [record for record in records if record.end in ("failed", "killed")]
    others = [record for end in FAILURES[2:] for record in sorted(records, key=_time) if record.end == end]
    return min(own, key=_time) if own else next(iter(others), None)


def killed_launcher(code: int) -> int | None:
    """The signal that killed a launcher which ended with `code`, if it was no stop signal; None for other endings.

    DeepSpeed's passes the end of its child on as a code, 256 less the signal; a shell's would be 128 and the signal.
    """
    for number in (-code, 256 - code, code - 128):
        if number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):
            return number
    return -code if code < 0 and -code not in LAUNCHER_STOPS else None


def judge(
    records: Mapping[int, Record],
    local: Collection[int],
    launcher_code: int,
    asked: bool,
    elsewhere: bool = False,
    alone: bool = False,
) -> Verdict:
    """Exit code and last lines of a launch whose ranks left `records`.

    `local` are the ranks of this node; `asked`: a stop signal came to the script; `elsewhere`: another node has failed;
    `alone`: there is no other node.
    """
    mine = [records[rank] for rank in local if rank in records]
    ends = [record.end for record in mine]
    everybody = list(records.values())
    if len(mine) == len(local) and set(ends) == {"done"}:  # whatever became of the launcher then, all is saved
        return Verdict(ExitCode.DONE, [])
    if not mine and launcher_code == ExitCode.REFUSED:
        return Verdict(ExitCode.REFUSED, [REFUSED], unexplained=True)
    refused = [record for record in everybody if record.end == "refused"]
    cause = first_cause(everybody)
    if refused and (cause is None or cause.end == "lost"):
        told = f"refused:\n{refused[0].reason}"
        return Verdict(ExitCode.REFUSED, [told, REFUSED])
    begun = any(record.step is not None for record in mine)
    harmless = {"stopped", "done", "lost", None} if asked and not begun else {"stopped"}
    all_stopped = len(mine) == len(local) and bool(mine) and set(ends) <= {"stopped"}
    if all_stopped and not asked and (elsewhere or killed_launcher(launcher_code)):
        return Verdict(ExitCode.FAILED, _saved_without_launcher(mine, launcher_code))
    by_one = alone and len(mine) == len(local) and not killed_launcher(launcher_code) and _stopped_by_one(mine)
    if all_stopped or by_one or (asked and not begun and set(ends) <= harmless):
        return Verdict(ExitCode.STOPPED_ON_SIGNAL, ["stopped on a signal (exit code 3)"])
    return Verdict(ExitCode.FAILED, _failure(cause, records, local, launcher_code), unexplained=cause is None)


def _stopped_by_one(mine: Collection[Record]) -> bool:
    """Whether a stop signal to one rank ended all before the first step: the others lost it, or their launcher then
    ended them, some before they listened. Where a rank was lost first, what the others say is the launcher's doing."""

    def alike(record: Record) -> bool:
        by_launcher = record.end == "killed" and record.reason == killed_in_words(-signal.SIGTERM)
        return record.step is None and (record.end in ("stopped", "lost") or by_launcher)

    ended_alike = all(map(alike, mine))
    return bool(mine) and ended_alike and min(mine, key=_time).end == "stopped"


def _saved_without_launcher(mine: Sequence[Record], code: int) -> list[str]:
    """Nobody wanted an end: the ranks of a launcher that is gone save, and this is a failure for whoever supervises."""
    killed = killed_launcher(code)
    who = (
        "a launcher of another node is gone"
        if killed is None
        else f"the launcher itself was {killed_in_words(-killed)}"
    )
    step = max((record.step for record in mine if record.step is not None), default=None)
    saved = "" if step is None else f"; its ranks saved and ended in step {step}"
    return ["", "the run failed (exit code 1)", f"  cause: {who}{saved}"]


def _failure(cause: Record | None, records: Mapping[int, Record], local: Collection[int], code: int) -> list[str]:
    lines = ["", "the run failed (exit code 1)"]
    if cause is None:
        missing = [rank for rank in local if rank not in records]
        if missing:
            who = ", ".join(map(str, missing))
            return [*lines, f"  cause: rank {who} never began (launcher's exit code {code}); its output is above"]
        if code < 0:
            return [*lines, f"  cause: the launcher itself was {killed_in_words(code)}"]
        return [*lines, f"  cause: the launcher ended with code {code} and no rank says why; its output is above"]
    if cause.end == "lost":
        return [*lines, *_lost(cause, records, local)]
    lines.append(f"  cause: {cause.place()}: {cause.reason}")
    if cause.stuck:
        lines.append(f"  stack: {cause.stuck}")
    if cause.log:
        lines.append(f"  log:   {cause.log}")
    return lines


def _lost(cause: Record, records: Mapping[int, Record], local: Collection[int]) -> list[str]:
    """Nobody here has an error of his own: it happened on another node."""
    silent = [record for rank, record in sorted(records.items()) if rank not in local and record.end is None]
    if silent:
        hosts = ", ".join(sorted({record.host for record in silent}))
        last = "; ".join(f"{record.place()}" for record in silent[:8])
        return [f"  cause: a rank of another node ({hosts}) ended without a word; last seen: {last}",
                "         the machine may be gone, or its launcher's last lines say more"]  # fmt: skip
    return [f"  cause: on another node, whose launcher's last lines name it; seen from here: {cause.place()}",
            *([f"  log:   {cause.log}"] if cause.log else [])]  # fmt: skip


def _time(record: Record) -> float:
    return record.time
