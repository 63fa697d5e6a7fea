"""The last lines of a file, however long it is."""

from __future__ import annotations

import os
from pathlib import Path

BLOCK_BYTES = 1 << 16


def last_lines(path: Path, most: int) -> list[bytes]:
    """At most so many lines that are not empty, oldest first; the last one may be cut."""
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
