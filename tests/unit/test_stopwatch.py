"""Phases of a step: each moment counts for one of them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from attnres_train.parallel import stopwatch as module
from attnres_train.parallel.stopwatch import Stopwatch


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock of stopwatches on by some seconds; nothing else does."""
    moments = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: moments[-1]))
    return lambda seconds: moments.append(moments[-1] + seconds)


def test_a_phase_inside_another_interrupts_it(sleep: Callable[[float], None]) -> None:
    watch = Stopwatch(torch.device("cpu"))
    wait = watch.timed("waiting", sleep)
    with watch.phase("backward"):
        sleep(0.02)
        with watch.phase("forward"):
            sleep(0.01)
            wait(0.03)
            sleep(0.04)
        wait(0.03)
    sleep(0.02)  # of no phase
    with watch.phase("optimizer"):
        sleep(0.01)
    seconds = watch.take()
    expected = {"backward": 0.02, "forward": 0.05, "waiting": 0.06, "optimizer": 0.01}
    assert seconds == pytest.approx(expected), "nothing counts twice, and waiting inside a phase is not its own"
    assert watch.take() == {}


def test_a_phase_that_raises_ends(sleep: Callable[[float], None]) -> None:
    watch = Stopwatch(torch.device("cpu"))
    with pytest.raises(RuntimeError), watch.phase("backward"), watch.phase("forward"):
        raise RuntimeError
    with watch.phase("data"):
        sleep(0.01)
    assert watch.take() == pytest.approx({"backward": 0.0, "forward": 0.0, "data": 0.01})
