"""How fast this machine is just now, so that a test can hold work to a time without knowing where it runs."""

from __future__ import annotations

import time

REFERENCE_SECONDS = 0.066
"""What the loop takes on the machine by which the README states its seconds."""
_TURNS = 300_000


def slowdown() -> float:
    """CPU time here over that on the reference machine, the best of three; a busy neighbour slows both alike."""
    return min(_loop_seconds() for _ in range(3)) / REFERENCE_SECONDS


def _loop_seconds() -> float:
    """Of what planning is made of: dictionaries, tuples and arithmetic."""
    started = time.process_time()
    seen: dict[tuple[int, int], float] = {}
    for turn in range(_TURNS):
        key = (turn % 97, turn % 89)
        seen[key] = seen.get(key, 0.0) + 0.5 * turn
    return time.process_time() - started
