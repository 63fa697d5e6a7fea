"""Phases of a step: each moment counts for one of them."""

from __future__ import annotations

import time

import pytest
import torch

from attnres_train.parallel.stopwatch import Stopwatch


def test_a_phase_inside_another_interrupts_it() -> None:
    watch, began = Stopwatch(torch.device("cpu")), time.perf_counter()
    wait = watch.timed("waiting", time.sleep)
    with watch.phase("backward"):
        time.sleep(0.02)
        with watch.phase("forward"):
            time.sleep(0.01)
            wait(0.03)
        wait(0.03)
    whole = time.perf_counter() - began
    time.sleep(0.02)  # of no phase
    with watch.phase("optimizer"):
        time.sleep(0.01)
    seconds = watch.take()
    assert sum(seconds.values()) - seconds["optimizer"] == pytest.approx(whole, abs=2e-3), "nothing counts twice"
    for phase, least in {"backward": 0.02, "forward": 0.01, "waiting": 0.06, "optimizer": 0.01}.items():
        assert seconds[phase] >= least
    assert seconds["forward"] < whole - 0.08, "waiting inside it is not its own"
    assert watch.take() == {}


def test_a_phase_that_raises_ends() -> None:
    watch = Stopwatch(torch.device("cpu"))
    with pytest.raises(RuntimeError), watch.phase("backward"), watch.phase("forward"):
        raise RuntimeError
    with watch.phase("data"):
        time.sleep(0.01)
    seconds = watch.take()
    assert seconds["data"] >= 0.01 and seconds["forward"] < 0.01 and seconds["backward"] < 0.01
