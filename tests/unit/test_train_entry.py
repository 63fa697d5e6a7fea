"""What a rank says of its own end: done, stopped, refused, failed, lost, in vain, with a stand-in for the run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from attnres_train import corpora, train
from attnres_train.checkpoint import folder
from attnres_train.config import load
from attnres_train.errors import ExitCode, refuse
from attnres_train.observe import claim, console
from attnres_train.trainer import machine
from attnres_train.trainer import run as trainer_run
from tests.unit.config_files import small


class Presence:
    """Keeps what it is told."""

    def __init__(self, step: int | None) -> None:
        self.record = SimpleNamespace(step=step, rank=1, log="logs/rank-0001.log", end=None, reason="")
        self.ends: list[tuple[str, str]] = []

    def enter(self, *_: object) -> None:
        pass

    def end(self, end: str, reason: str = "") -> None:
        self.record.end, self.record.reason = end, reason
        self.ends.append((end, reason))

    def missing(self) -> str:
        return "rank 3 did not come"


def raises(error: BaseException) -> Callable[..., ExitCode]:
    def run(*_: object) -> ExitCode:
        raise error

    return run


LOST = RuntimeError("[gloo/pair.cc:1] Connection closed by peer [127.0.0.1]:1")


@pytest.mark.parametrize(
    ("run", "step", "code", "end"),
    [
        (lambda *_: ExitCode.DONE, 9, ExitCode.DONE, ("done", "")),
        (lambda *_: ExitCode.STOPPED_ON_SIGNAL, 9, ExitCode.STOPPED_ON_SIGNAL, ("stopped", "")),
        (raises(refuse("a", "b", "c")), None, ExitCode.REFUSED, ("refused", "a: b\n    -> c")),
        (raises(refuse("a", "b", "c")), 9, ExitCode.FAILED, ("failed", "a: b\n    -> c")),
        (raises(LOST), 9, ExitCode.FAILED, ("lost", f"RuntimeError: {LOST}")),
        (raises(OSError("Broken pipe")), 9, ExitCode.FAILED, ("lost", "OSError: Broken pipe")),
        (raises(RuntimeError("Timed out waiting 30000ms")), 9, ExitCode.FAILED, ("timeout", "rank 3 did not come")),
        (raises(TimeoutError("timed out")), 9, ExitCode.FAILED, ("timeout", "rank 3 did not come")),
        (raises(OSError("timed out")), 9, ExitCode.FAILED, ("failed", "OSError: timed out")),
        (raises(KeyError("x")), 9, ExitCode.FAILED, ("failed", "KeyError: 'x'")),
        (raises(SystemExit(0)), 9, ExitCode.FAILED, ("failed", "ended with code 0 before the run was done")),
    ],
    ids=[
        "done",
        "stopped",
        "refused",
        "too late",
        "closed",
        "pipe",
        "in vain",
        "of Python",
        "of a disk",
        "own",
        "exit",
    ],
)
def test_every_end_has_its_word_and_its_code(
    run: Callable[..., ExitCode],
    step: int | None,
    code: ExitCode,
    end: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, list[str], int]] = []

    def load_checked(path: str, overrides: list[str], world: int) -> Any:
        seen.append((path, list(overrides), world))
        return SimpleNamespace(config=small(tmp_path), path=Path(path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(load, "load_checked", load_checked)
    monkeypatch.setattr(corpora, "open_corpora", lambda _config: None)
    monkeypatch.setattr(folder, "candidates", lambda *_: [])
    monkeypatch.setattr(claim, "refuse_in_use", lambda _folder: None)
    monkeypatch.setattr(console, "start_logging", lambda *_: None)
    monkeypatch.setattr(trainer_run, "run", run)
    monkeypatch.setattr(train, "_SECONDS_BEHIND_THE_CAUSE", 0.0)
    presence = Presence(step)
    for first in ([], ["--local_rank=1"], ["--local-rank=1"]):
        arguments = [*first, "my.toml", "--training.steps=3"]
        assert train.train(arguments, 1, 4, cast(Any, None), cast(Any, presence)) is code
    assert presence.ends == [end] * 3
    assert seen == [("my.toml", ["--training.steps=3"], 4)] * 3, "DeepSpeed's launcher puts a flag of its own first"


def test_devices_are_as_wished_before_a_rank_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    config = small(tmp_path, "--parallel.device=cpu")

    def prepare(prepared: object, world: int) -> None:
        seen.extend((prepared is config, world, os.environ.get("CUDA_VISIBLE_DEVICES")))

    def run(*_: object) -> ExitCode:
        seen.append("run")
        return ExitCode.DONE

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(load, "load_checked", lambda *_: SimpleNamespace(config=config, path=Path("my.toml")))
    monkeypatch.setattr(corpora, "open_corpora", lambda _config: None)
    monkeypatch.setattr(folder, "candidates", lambda *_: [])
    monkeypatch.setattr(claim, "refuse_in_use", lambda _folder: None)
    monkeypatch.setattr(console, "start_logging", lambda *_: None)
    monkeypatch.setattr(machine, "prepare_machine", prepare)
    monkeypatch.setattr(trainer_run, "run", run)
    assert train.train(["my.toml"], 1, 4, cast(Any, None), cast(Any, Presence(None))) is ExitCode.DONE
    assert seen == [True, 4, "-1", "run"]


def test_without_a_file_nothing_begins(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--training.steps=3", "my.toml"]):
        presence = Presence(None)
        assert train.train(arguments, 0, 1, cast(Any, None), cast(Any, presence)) is ExitCode.REFUSED
        assert [end for end, _ in presence.ends] == ["refused"]
        assert "the configuration file comes first" in presence.record.reason
