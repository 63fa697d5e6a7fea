"""What a resume says of what is different from now on, and which step a run ends with."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest

from attnres_train.checkpoint.choose import Choice
from attnres_train.checkpoint.save import RunIdentity
from attnres_train.observe.console import CONSOLE
from attnres_train.progress import TrainState
from attnres_train.trainer import resume as module
from attnres_train.trainer.config import TrainingConfig, last_step_of
from attnres_train.trainer.resume import resume
from tests.unit.checkpoint_folders import manifest

WAS = {
    "training.steps": 100,
    "training.global_batch_size": 8,
    "optimizer.learning_rate": 1e-3,
    "optimizer.beta2": 0.95,
    "schedule.kind": "wsd",
    "schedule.warmup_steps": 0,
    "schedule.decay_steps": 20,
    "schedule.min_learning_rate": 1e-4,
}


def told(now: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[str]:
    state = TrainState(step=90, samples=720)
    monkeypatch.setattr(module, "load_checkpoint", lambda *_: (state, []))
    choice = Choice(Path("/run/checkpoints/step-00000090"), manifest(settings=WAS), ("an older one: it is damaged",))
    with caplog.at_level(logging.INFO, CONSOLE):
        found = resume(choice, cast(Any, None), cast(Any, None), RunIdentity((2,), {}, now), (), Path("/run"))
    assert found is state
    return [record.getMessage() for record in caplog.records]


def test_values_are_told_as_they_were_and_as_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of wsd the decay goes along with the steps, however long it is."""
    now = WAS | {"training.steps": 200, "training.global_batch_size": 16, "optimizer.beta2": 0.99}
    assert told(now, monkeypatch, caplog) == [
        "passing over an older one: it is damaged",
        "resuming from /run/checkpoints/step-00000090 at step 90, sample 720",
        "  optimizer.beta2: was 0.95, is 0.99 from now on",
        "  training.global_batch_size: was 8, is 16 from now on",
        "  training.steps: was 100, is 200 from now on",
        "  the learning rate counts steps, not samples: from here a step moves it as before and takes 16 samples "
        "instead of 8; the data go on at the next sample",
        "  learning rate of step 91: would have been 0.000505, is 0.001",
        "  the decay goes along: it ends at training.steps = 200",
    ]


def test_nothing_is_told_of_what_stayed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert len(told(dict(WAS), monkeypatch, caplog)) == 2


@pytest.mark.parametrize(("stop", "last"), [(None, 20), (7, 7), (20, 20), (30, 20)])
def test_the_last_step_is_the_earlier_of_both_ends(stop: int | None, last: int) -> None:
    training = TrainingConfig(
        global_batch_size=8, micro_batch_size=2, sequence_length=32, steps=20, stop_after_steps=stop
    )
    assert last_step_of(training) == last
