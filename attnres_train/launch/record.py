"""One small file a rank: who it is, where it is, and how it ended. Written by the rank, read by whoever judges.

The file lies in the folder that the launch script names by ATTNRES_JOB, from the first moment of the rank, and in
`ranks/` of the run folder as soon as that is known, where the ranks of all nodes meet if the folder is shared.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

JOB = "ATTNRES_JOB"
"""The environment variable that names the job's folder; every process of a job carries it."""

OUTPUT = "ATTNRES_END_WITH_OUTPUT"
"""Set for ranks that were started over ssh, which know by their closed output that nobody holds them any more."""

End = Literal["done", "stopped", "refused", "failed", "lost", "timeout", "killed"]
"""`done`: the last step. `stopped`: on a signal. `refused`: before training. `failed`: an error of its own. `lost`: a
connection to another rank broke. `timeout`: another rank did not come. `killed`: without a word, found by others."""

FAILURES: tuple[End, ...] = ("failed", "killed", "timeout", "lost")
"""Endings that make a run fail, the likeliest cause first; `failed` and `killed` are equals, the earlier counts."""


@dataclass
class Record:
    rank: int
    host: str
    pid: int
    started: float
    time: float
    """When this was written, in seconds since 1970, by this rank's clock."""
    at: str = "starting"
    """What the rank is doing."""
    step: int | None = None
    """The step it is in; None until training begins."""
    moves: int = 0
    """Named points it has come to; all ranks come to the same ones."""
    end: End | None = None
    reason: str = ""
    log: str | None = None
    meeting: str = ""
    """What rank 0 made up when the ranks met: those of one launch have it alike, on all nodes."""
    stuck: str | None = None
    """Where it stands, if it has stood there for long; the innermost call first."""
    waits: bool = False
    """Whether it stands there to wait for others."""

    def place(self) -> str:
        where = "before the first step" if self.step is None else f"at step {self.step}"
        return f"rank {self.rank} on {self.host}, {where} ({self.at})"


class Position:
    """The point and the step of a rank, in a file that is mapped into memory: exact also of a rank that is killed.

    Moving on writes some bytes of memory, so that every step can say so.
    """

    SIZE = 128

    def __init__(self, folder: Path, rank: int):
        with open(position_file(folder, rank), "w+b") as file:
            file.truncate(self.SIZE)
            self._memory = mmap.mmap(file.fileno(), self.SIZE)

    def move(self, at: str, step: int | None) -> None:
        text = f"{'' if step is None else step}\t{at}\n".encode()
        self._memory[:] = text.ljust(self.SIZE)[: self.SIZE]


def position_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:04d}.position"


def record_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:04d}.json"


def failure_file(folder: Path, meeting: str) -> Path:
    """The sign that a rank of this meeting has failed: one file to look for instead of the records of all."""
    return folder / f"failed-{meeting}"


def shared_folder(log: str) -> Path:
    """Where the records of a run are, given the log file of one of its ranks."""
    return Path(log).parents[1] / "ranks"


def write_record(record: Record, folder: Path) -> None:
    """Write at once or not at all; a disk that is full must not end a rank."""
    path = record_file(folder, record.rank)
    partial = path.with_suffix(f".{record.pid}")
    try:
        partial.write_text(to_json(record), encoding="utf-8")
        os.replace(partial, path)
        if record.meeting and record.end in FAILURES:
            failure_file(folder, record.meeting).touch()
    except OSError:
        with suppress(OSError):  # of a folder that is gone
            partial.unlink()


def read_records(folder: Path) -> dict[int, Record]:
    """The records in `folder` by rank, at their exact positions where known; what cannot be read is left out."""
    found = {record.rank: record for record in map(_read, folder.glob("rank-*.json")) if record is not None}
    for record in found.values():
        _correct(record, position_file(folder, record.rank))
    return found


def newest(records: Iterable[Record]) -> dict[int, Record]:
    """Of each rank the latest of `records`."""
    found: dict[int, Record] = {}
    for record in sorted(records, key=lambda record: record.time):
        found[record.rank] = record
    return found


def from_json(text: str) -> Record:
    values = json.loads(text)
    return Record(**{field.name: values[field.name] for field in fields(Record) if field.name in values})


def to_json(record: Record) -> str:
    return json.dumps(asdict(record))


def _correct(record: Record, path: Path) -> None:
    try:
        step, tab, at = path.read_text(encoding="utf-8").partition("\n")[0].partition("\t")
    except (OSError, ValueError):
        return
    if tab:
        record.at, record.step = at, int(step) if step else None


def _read(path: Path) -> Record | None:
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return None
