"""What rank 0 prints and logs keep: times that can be compared, and how long a run still takes."""

from __future__ import annotations

import logging
import time

import pytest

from attnres_train.observe.console import Remaining, Zoned


@pytest.mark.parametrize(
    ("zone", "words"),
    [("UTC", "2026-03-01 12:00:00.250+00:00 INFO a: b"), ("Asia/Kolkata", "2026-03-01 17:30:00.250+05:30 INFO a: b")],
)
def test_log_times_carry_their_zone(monkeypatch: pytest.MonkeyPatch, zone: str, words: str) -> None:
    """As clearml/clearml#152 asks: a time without a zone is another one to who reads it elsewhere."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    record = logging.LogRecord("a", logging.INFO, "", 0, "b", None, None)
    record.created, record.msecs = 1772366400.25, 250.0
    assert Zoned().format(record) == words
    monkeypatch.undo()
    time.tzset()


def test_what_is_left_counts_evaluations_and_only_the_steps_of_this_process() -> None:
    """tdrussell/qlora-pipe#8 leaves evaluations out, leggedrobotics/rsl_rl#10 counts the steps before a resume."""
    remaining, now, step = Remaining(), 1000.0, 500  # resumed there
    left = []
    for _ in range(100):
        step, now = step + 1, now + (60.0 if step == 500 else 2.0)  # the first one compiles
        left.append(remaining.seconds(now, step, 1000, 2.0))
        if step % 10 == 0:
            now += 30.0  # an evaluation
    assert left[0] == 499 * 2.0
    assert left[-1] == pytest.approx(400 * (2.0 + 30.0 / 10), rel=0.06)
    assert remaining.seconds(now, 1000, 1000, 2.0) == 0.0
