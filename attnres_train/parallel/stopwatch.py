"""How long the phases of a step take on one rank: by the clock on a CPU, by events on a GPU's stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch


class Stopwatch:
    """Seconds by phase. A phase inside another one interrupts it: what counts for one counts for no other.

    On a GPU the borders of phases are events in the stream, so that nothing waits for them.
    """

    def __init__(self, device: torch.device):
        self._on_gpu = device.type == "cuda"
        self._open: list[str] = []
        self._borders: list[tuple[str | None, Any]] = []
        """What begins at a moment; None for what belongs to no phase."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What happens inside counts as `name`."""
        self._open.append(name)
        self._mark(name)
        try:
            yield
        finally:
            self._open.pop()
            self._mark(self._open[-1] if self._open else None)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, whose calls count as `name`."""

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with self.phase(name):
                return function(*arguments, **named)

        return call

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call, which must be outside of all phases; on a GPU waits for the stream."""
        borders, self._borders = self._borders, []
        if borders and self._on_gpu:
            borders[-1][1].synchronize()
        seconds: dict[str, float] = {}
        for (name, began), (_, ended) in zip(borders, borders[1:], strict=False):
            if name is not None:
                seconds[name] = seconds.get(name, 0.0) + self._between(began, ended)
        return seconds

    def _mark(self, begins: str | None) -> None:
        moment: Any = None
        if self._on_gpu:
            moment = torch.cuda.Event(enable_timing=True)
            moment.record()
        else:
            moment = time.perf_counter()
        self._borders.append((begins, moment))

    def _between(self, began: Any, ended: Any) -> float:
        return began.elapsed_time(ended) / 1000 if self._on_gpu else ended - began
