"""Traces of chosen steps on chosen ranks: what ran when, by torch's profiler; on a GPU also what memory was for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from attnres_train.observe.config import ObserveConfig

log = logging.getLogger(__name__)
MOST_MEMORY_EVENTS = 200_000


class Profiling:
    """The traces of one rank; nothing at all where none is wanted."""

    def __init__(self, config: ObserveConfig, run_folder: Path, rank: int, device: torch.device):
        wanted = config.profile_steps is not None and rank in config.profile_ranks
        self._steps = config.profile_steps if wanted else None
        self._folder, self._rank, self._on_gpu = run_folder / "profile", rank, device.type == "cuda"
        self._profiler: Any = None
        self._first: int | None = None

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Step number `step` runs inside. The trace is written after the last of the chosen steps."""
        if self._steps is None or not self._steps[0] <= step <= self._steps[1]:
            yield
            return
        if self._profiler is None:
            self._begin(step)
        with torch.profiler.record_function(f"step {step}"):
            yield
        if step == self._steps[1]:
            self.finish(step)

    def finish(self, step: int) -> None:
        """Write what there is; also where a run ends before the last of the chosen steps."""
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        name = f"steps-{self._first:08d}-{step:08d}.rank-{self._rank:04d}"
        try:
            self._folder.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(self._folder / f"{name}.json.gz"))
            if self._on_gpu:
                torch.cuda.memory._dump_snapshot(str(self._folder / f"{name}.memory.pickle"))
        except OSError as error:
            log.warning(f"{self._folder} cannot be written ({error.strerror}); the trace of step {step} is lost")
        finally:
            if self._on_gpu:
                torch.cuda.memory._record_memory_history(enabled=None)

    def _begin(self, step: int) -> None:
        self._first = step  # of this process: one that resumes among the chosen steps begins later
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if self._on_gpu:
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
            torch.cuda.memory._record_memory_history(max_entries=MOST_MEMORY_EVENTS)
        self._profiler = torch.profiler.profile(activities=kinds, record_shapes=True)
        self._profiler.start()
