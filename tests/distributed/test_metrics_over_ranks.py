"""Numbers over ranks: of memory the fullest one's, of seconds the mean."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from attnres_train.observe import metrics
from attnres_train.observe.metrics import over_ranks
from attnres_train.observe.tags import PHASES
from attnres_train.parallel.grid import build_grid
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import tiny_config


def peaks_and_seconds() -> Any:
    grid = build_grid(tiny_config("block", pipeline=3).parallel, seed=1)
    used = SimpleNamespace(ru_maxrss=(2 << 20, 5 << 20, 3 << 20)[grid.rank])  # KiB, as Linux counts
    metrics.resource = SimpleNamespace(getrusage=lambda _who: used, RUSAGE_SELF=0)  # type: ignore[attr-defined]
    return over_ranks(
        grid, (5, 90, 20)[grid.rank], {PHASES[0]: float(grid.rank), PHASES[1]: 6.0 if not grid.rank else 0.0}
    )


def test_memory_is_of_the_fullest_rank_and_seconds_are_a_mean() -> None:
    for peaks, phases in run_ranks(peaks_and_seconds, 3):
        assert (peaks.kept_bytes, peaks.memory_gib) == (90, 5.0)
        assert phases == pytest.approx({phase: 0.0 for phase in PHASES} | {PHASES[0]: 1.0, PHASES[1]: 2.0})
