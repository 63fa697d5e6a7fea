"""What is recorded of a step and of an evaluation, each number by hand: sums, means and shares are told apart."""

from __future__ import annotations

import math

import pytest

from attnres_train.observe.config import ObserveConfig
from attnres_train.observe.metrics import LogInterval, MfuTerms, Peaks, step_metrics, validation_metrics
from attnres_train.observe.tags import PHASES
from attnres_train.progress import LossSum, StepReport, TrainState


def test_rates_are_over_all_steps_of_the_interval_and_of_one_device() -> None:
    report = StepReport(
        losses={"train": LossSum(60.0, 20), "train/web": LossSum(0.0, 0)},
        grad_norm=0.5,
        learning_rate=1e-3,
        applied=True,
        tokens=10,
        forward_bytes=11,
        backward_bytes=12,
        votes={},
        seconds={},
    )
    interval = LogInterval(seconds=8.0, phases={phase: 2.0 * n for n, phase in enumerate(PHASES)}, steps=4, tokens=400)
    found = step_metrics(
        TrainState(step=4, skipped_steps=3),
        report,
        interval,
        MfuTerms(6e9, 1e12),
        devices=5,
        peaks=Peaks(1.5, 99),
    )
    assert found["loss/train"] == 3.0 and "loss/train/web" not in found
    assert found["throughput/tokens_per_second"] == 50.0
    assert found["throughput/tokens_per_second_per_device"] == 10.0
    assert found["throughput/model_tflops_per_device"] == pytest.approx(0.06)
    assert found["throughput/mfu"] == pytest.approx(0.06)
    assert found["time/step_seconds"] == 2.0
    assert [found[f"time/{phase}_seconds"] for phase in PHASES] == [n / 2 for n in range(len(PHASES))]
    assert (found["pipeline/forward_bytes"], found["pipeline/backward_bytes"]) == (11, 12)
    assert (found["pipeline/kept_bytes"], found["memory/peak_gib"], found["optim/skipped_steps"]) == (99, 1.5, 3)


def test_sets_count_by_their_tokens_and_bits_by_their_bytes() -> None:
    found = validation_metrics({"a": LossSum(20.0, 10), "b": LossSum(10.0, 2)}, {"a": 0.5, "b": 0.25})
    assert found["loss/valid"] == pytest.approx(30 / 12)
    assert (found["loss/valid/a"], found["loss/valid/b"]) == (2.0, 5.0)
    bits = {name: loss / math.log(2) / size for name, loss, size in (("", 30, 28), ("/a", 20, 20), ("/b", 10, 8))}
    assert {name: found[f"loss/valid_bits_per_byte{name}"] for name in bits} == pytest.approx(bits)


def test_a_step_is_recorded_when_it_is_due_or_was_skipped() -> None:
    observe = ObserveConfig(log_interval_steps=3)
    assert [step for step in range(1, 8) if observe.records(step, applied=True)] == [3, 6]
    assert [step for step in range(1, 8) if observe.records(step, applied=step != 4)] == [3, 4, 6]
