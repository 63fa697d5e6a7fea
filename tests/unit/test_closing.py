"""The last words of a run that ended in order."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attnres_train.config.load import load
from attnres_train.progress import TrainState
from attnres_train.trainer.closing import closing
from tests.unit.config_files import SMALL, write


@pytest.mark.parametrize(
    ("step", "stopped", "trained", "told"),
    [
        (20, False, True, "done: 20 of 20 steps, 160 samples, 5,120 tokens"),
        (20, False, False, "complete: 20 of 20 steps are done, nothing to train"),
        (8, False, True, "stopped after 8 of 20 steps, as training.stop_after_steps says; without it the same command"),
        (8, False, False, "training.stop_after_steps is reached: 8 of 20 steps are done, nothing to train"),
        (8, True, True, "stopped on a signal after step 8; run the same command to go on"),
    ],
)
def test_each_end_says_what_was_done_why_and_what_comes_next(
    step: int, stopped: bool, trained: bool, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(write(tmp_path, SMALL), []).config
    config = replace(config, training=replace(config.training, steps=20))
    state = TrainState(step=step, samples=8 * step, tokens=256 * step)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # as of a shell in which no environment is active
    first, *rest = closing(config, Path("/runs/my one"), state, stopped=stopped, trained=trained)
    assert first.startswith(told)
    assert "changed nothing" not in first
    assert ("  checkpoint  /runs/my one/checkpoints/step-000000" in rest[0]) == trained
    tools = Path(sys.executable).parent
    assert f"{tools}/attnres report '/runs/my one'" in rest[-2]
    assert rest[-1].endswith(f"{tools}/tensorboard --logdir '/runs/my one/tensorboard'")


@pytest.mark.parametrize("resume", ["auto", "must", "runs/other/checkpoints/step-00000030", "never"])
def test_how_a_stopped_run_goes_on(resume: str, tmp_path: Path) -> None:
    config = load(write(tmp_path, SMALL), []).config
    config = replace(config, checkpoint=replace(config.checkpoint, resume=resume))
    (first, *_) = closing(config, Path("/runs/my"), TrainState(step=2), stopped=True)
    assert first.endswith("run the same command to go on") == (resume != "never")


def test_a_run_does_not_hide_the_steps_that_changed_nothing(tmp_path: Path) -> None:
    config = load(write(tmp_path, SMALL), []).config
    state = TrainState(step=config.training.steps, samples=8, tokens=8, skipped_steps=3)
    (first, *_) = closing(config, Path("/runs/my"), state, stopped=False)
    assert first.endswith("; 3 steps changed nothing, for want of a finite gradient")
