"""Lines of `metrics.jsonl`, `depth.jsonl` or `samples.jsonl` as they may be found after a kill or a power failure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from attnres_train.strict_json import loads

LOSS_TOKENS = "loss_tokens"
"""Beside `loss/train`, of how many tokens it is the mean; older records, which lack it, have that of one step."""
_LARGEST_STEP = 2**53
BLOCK_BYTES = 1 << 16


def parse_record(line: bytes) -> dict[str, Any] | None:
    """The record in `line`, with a whole number as `step`; None for whatever else may stand there."""
    try:
        record = loads(line)
    except (ValueError, RecursionError):  # no JSON, no UTF-8, digits without end; brackets without end
        return None
    step = record.get("step") if isinstance(record, dict) else None
    whole = isinstance(step, int) and not isinstance(step, bool) and abs(step) <= _LARGEST_STEP
    return record if whole else None


def read_curve(run_folder: Path, tag: str) -> tuple[list[int], list[float]]:
    """Steps and values of `tag` in the run's `metrics.jsonl`."""
    lines = (run_folder / "metrics.jsonl").read_bytes().splitlines()
    found = [record for line in lines if (record := parse_record(line)) and tag in record]
    return [record["step"] for record in found], [record[tag] for record in found]


def recorded_losses(run_folder: Path, first: int, last: int) -> dict[str, float]:
    """By tag, the newest of each that the run recorded from step `first` to `last`; none where it has no records."""
    records, found = run_folder / "metrics.jsonl", dict[str, float]()
    for line in records.read_bytes().splitlines() if records.is_file() else []:
        record = parse_record(line)
        if record is not None and first <= record["step"] <= last:
            losses = {tag: value for tag, value in record.items() if tag.startswith("loss/")}
            found |= {tag: value for tag, value in losses.items() if isinstance(value, float)}
    return found


def last_lines(path: Path, most: int) -> list[bytes]:
    """At most so many lines that are not empty of a file of any length, oldest first; the last one may be cut."""
    blocks: list[bytes] = []
    ends = 0
    with open(path, "rb") as file:
        position = file.seek(0, os.SEEK_END)
        while position > 0 and ends <= most:
            size = min(BLOCK_BYTES, position)
            position = file.seek(position - size)
            blocks.append(file.read(size))
            ends += blocks[-1].count(b"\n")
    lines = b"".join(reversed(blocks)).split(b"\n")
    # Where reading began in the middle of a file, so it did in the middle of a line.
    return [line for line in lines[1 if position else 0 :] if line][-most:]
