"""Timing by pairs: everything in one process, one pinned thread, CPU time, the minimum of interleaved rounds.

On shared machines absolute times drift by tens of percent within minutes; a ratio of two things that took turns
does not. Fresh pages are expensive on virtual machines, so the allocator is told to keep what it has.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from attnres_train.strict_json import dumps

KEEP_PAGES = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(2**28),
    "OMP_NUM_THREADS": "1",
}


def settle(module: str) -> None:
    """Start this process again with an allocator that keeps its pages and one thread, pinned to one core."""
    if any(os.environ.get(name) != value for name, value in KEEP_PAGES.items()):
        os.environ.update(KEEP_PAGES)
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def interleaved(cases: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
    """CPU seconds of each case in each round; the cases take turns, each round in another order."""
    names = list(cases)
    for _ in range(warm_up):
        for name in names:
            cases[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            started = time.process_time()
            cases[name]()
            seconds[name].append(time.process_time() - started)
    return seconds


def ratio_of_minima(seconds: Mapping[str, Sequence[float]], case: str, base: str) -> float:
    """The least time of `case` over the least of `base`."""
    return min(seconds[case]) / min(seconds[base])


def median_of_ratios(seconds: Mapping[str, Sequence[float]], case: str, base: str) -> float:
    """The median over rounds of the ratio within a round: a check on `ratio_of_minima`."""
    return median(a / b for a, b in zip(seconds[case], seconds[base], strict=True))


def arguments(description: str, rounds: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="interleaved repetitions (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def show(rows: Sequence[Mapping[str, Any]], as_json: bool, about: str) -> None:
    """The rows as a table under one line about them, or as one JSON object."""
    if as_json:
        print(dumps({"about": about, "rows": list(rows)}))
        return
    print(about)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    texts = [[_text(row.get(name)) for name in columns] for row in rows]
    widths = [max(len(line[i]) for line in [columns, *texts]) for i in range(len(columns))]
    for line in [columns, *texts]:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if value < 0.1 or value >= 1000 else f"{value:.3f}"
    return "" if value is None else str(value)
