"""Who is missing where ranks wait in vain. Records in, words out.

With gloo the wait itself raises, and the rank asks the others where they are. With NCCL nothing raises: the host stands
where it needs a result, until a thread of the process group, the watchdog, ends the whole process by SIGABRT. So the
rank that hangs lives on, those that waited for it are dead, and it takes somebody else to see who was missing: the
watch of the launch keeps what all ranks said a moment before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from attnres_train.launch.record import Record

SECONDS_APART = 4.0
"""Heartbeats come once a second: whose record did not change for so long does not answer."""
_WATCHDOG = re.compile(r"\[rank(\d+)\]:.*Watchdog caught collective operation timeout: (WorkNCCL\([^)]*\)[^.]*)")


def heard_of_watchdog(line: str) -> tuple[int, str] | None:
    """The rank whose watchdog says in `line` of its output that it waited in vain, and for which operation."""
    found = _WATCHDOG.search(line)
    return None if found is None else (int(found[1]), found[2])


class Sightings:
    """What ranks said at least SECONDS_APART ago."""

    def __init__(self) -> None:
        self.before: Mapping[int, Record] = {}
        self._latest: Mapping[int, Record] = {}
        self._at = float("-inf")

    def note(self, records: Mapping[int, Record], now_seconds: float) -> None:
        if now_seconds >= self._at + SECONDS_APART:
            self.before, self._latest, self._at = self._latest, records, now_seconds


def waited_in_vain(
    ended: Iterable[Record],
    operations: Mapping[int, str],
    before: Mapping[int, Record],
    after: Mapping[int, Record],
) -> list[Record]:
    """Those of `ended` that a watchdog ended: they failed as those do whose wait raises, by a `timeout`.

    `operations`: by rank, what those waited for.
    `before` and `after`: what ranks said some beats before the first of them ended, and as it did.
    """
    aborted = [record for record in ended if record.rank in operations]
    others = sorted(after.keys() - {record.rank for record in aborted})
    for record in aborted:
        record.end = "timeout"
        words = missing_in_words(record, before, after, others)
        record.reason = f"NCCL waited in vain at `{record.at}` for {operations[record.rank]}; {words}"
    return aborted


def missing_in_words(
    mine: Record, before: Mapping[int, Record], after: Mapping[int, Record], ranks: Collection[int], most: int = 4
) -> str:
    """Which of `ranks` let `mine` wait in vain. `before` and `after`: what they said, some beats apart."""
    silent, behind, ended, busy = [], [], [], []
    for rank in (rank for rank in ranks if rank != mine.rank):
        record = after.get(rank)
        if record is None:
            silent.append(f"rank {rank}, which never said where it is")
        elif record.end is not None:
            ended.append(f"rank {rank} on {record.host}, which ended ({record.end}: {record.reason})")
        elif rank in before and before[rank].time == record.time:
            silent.append(f"{record.place()}, which does not answer: stopped (SIGSTOP), or its machine or link is down")
        elif record.moves < mine.moves:
            behind.append(f"{record.place()}{_stack(record)}")
        elif record.stuck is not None and not record.waits:
            busy.append(f"{record.place()}{_stack(record)}")
    for kind in (silent, behind, ended, busy):
        if kind:
            more = f", and {len(kind) - most} more" if len(kind) > most else ""
            return "missing: " + "; ".join(kind[:most]) + more
    return "every rank answers and waits too: the ranks do not agree on what comes next, or a message was lost"


def _stack(record: Record) -> str:
    return f", stack: {record.stuck}" if record.stuck else ""
