"""When saves are published, waited for and followed by deletions, with stand-ins for the saves themselves."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from attnres_train.checkpoint.config import CheckpointConfig
from attnres_train.checkpoint.save import RunIdentity, Written
from attnres_train.observe.console import CONSOLE
from attnres_train.progress import TrainState
from attnres_train.trainer import saving as module
from attnres_train.trainer.saving import Saves


class Save:
    """What happens to it is added to `said`."""

    notes = ("no room for a hint",)
    started = 0.0

    def __init__(self, said: list[str], state: TrainState):
        self.said, self.state, self.stands = said, state, Written(False, None)

    def written(self) -> Written:
        return self.stands

    def _say(self, words: str) -> None:
        self.said.append(f"{words} {self.state.step}")

    def wait(self) -> None:
        self._say("wait for")

    def publish(self) -> Path:
        self._say("publish")
        return Path(f"/step-{self.state.step}")

    def retire(self, keep: int | None) -> None:
        self._say(f"retire, keep {keep}, after")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    words: list[str] = []

    def start(_folder: Path, _engine: Any, _grid: Any, state: TrainState, _identity: RunIdentity) -> Save:
        words.append(f"start {state.step}")
        return Save(words, state)

    monkeypatch.setattr(module, "CheckpointSave", SimpleNamespace(start=start))
    return words


def saves(asynchronous: bool = True) -> Saves:
    recorder = SimpleNamespace(checkpoint_started=lambda *_: None, checkpoint_durable=lambda *_: None)
    config = CheckpointConfig(keep=2, asynchronous=asynchronous)
    return Saves(Path("/run"), *map(cast, [Any] * 3, [None] * 3), config, cast(Any, recorder))


def current(made: Saves) -> Save:
    assert made._current is not None
    return cast(Save, made._current)


def test_a_save_is_published_once_every_rank_has_written_and_at_once_where_one_has_failed(said: list[str]) -> None:
    made = saves()
    assert made.votes() == {"writing": False, "failed": False}
    made.advance({"writing": 0, "failed": 0})
    made.start(TrainState(step=2))
    assert made.votes() == {"writing": True, "failed": False}
    current(made).stands = Written(True, "no space")
    assert made.votes() == {"writing": False, "failed": True}
    made.advance({"writing": 1, "failed": 0})
    assert said == ["start 2"]
    made.advance({"writing": 0, "failed": 0})
    assert said == ["start 2", "publish 2"]
    made.advance({"writing": 0, "failed": 0})
    made.start(TrainState(step=4))
    made.advance({"writing": 1, "failed": 1})
    assert said[2:] == ["retire, keep 2, after 2", "start 4", "publish 4"], "others need not be waited for"
    made.finish()
    assert said[5:] == ["retire, keep 2, after 4"]


def test_one_save_at_a_time_and_older_ones_go_before_the_next_begins(said: list[str]) -> None:
    made = saves()
    for step in (2, 4):
        made.start(TrainState(step=step))
    made.finish()
    assert said == [
        "start 2",
        *("wait for 2", "publish 2", "retire, keep 2, after 2", "start 4"),
        *("wait for 4", "publish 4", "retire, keep 2, after 4"),
    ]
    made.finish()
    assert len(said) == 8


def test_a_save_that_blocks_is_published_before_the_loop_goes_on(said: list[str]) -> None:
    saves(asynchronous=False).start(TrainState(step=2))
    assert said == ["start 2", "wait for 2", "publish 2"]


def test_what_went_wrong_and_does_no_harm_is_told_once(said: list[str], caplog: pytest.LogCaptureFixture) -> None:
    made = saves()
    with caplog.at_level(logging.WARNING, CONSOLE):
        for step in (2, 4, 6):
            made.start(TrainState(step=step))
        made.finish()
    assert [record.getMessage() for record in caplog.records] == ["no room for a hint"]
    assert len(said) == 12
