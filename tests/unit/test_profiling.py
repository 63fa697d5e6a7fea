"""Traces of chosen steps, and the check of what is asked for."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnres_train.observe import rules
from attnres_train.observe.config import ObserveConfig
from attnres_train.observe.profiling import Profiling
from attnres_train.observe.wandb_sink import WandbSink
from tests.distributed.tiny import tiny_config


def trace(config: ObserveConfig, folder: Path, rank: int, steps: int, done: int = 0) -> list[str]:
    """Steps in the traces of a run of `steps` steps, `done` of them before it was resumed, by file."""
    profiling = Profiling(config, folder, rank, torch.device("cpu"))
    for step in range(done + 1, steps + 1):
        with profiling.around(step):
            torch.ones(3).sum()
    profiling.finish(steps)
    found = []
    for path in sorted((folder / "profile").glob("*")):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
        assert any(event["name"] == "aten::sum" for event in events)
        found.append(f"{path.name}: {', '.join(sorted(names))}")
    return found


def test_the_chosen_steps_of_the_chosen_ranks_are_traced(tmp_path: Path) -> None:
    config = ObserveConfig(profile_steps=(2, 3), profile_ranks=(1,))
    assert trace(config, tmp_path, 0, 5) == []
    assert trace(config, tmp_path, 1, 5) == ["steps-00000002-00000003.rank-0001.json.gz: step 2, step 3"]
    several = ObserveConfig(profile_steps=(2, 2), profile_ranks=(0, 2))
    assert trace(several, tmp_path / "several", 1, 3) == []
    (folder := tmp_path / "several").mkdir()
    assert trace(several, folder, 2, 3) == ["steps-00000002-00000002.rank-0002.json.gz: step 2"]


def test_a_run_that_ends_early_leaves_what_it_has(tmp_path: Path) -> None:
    config = ObserveConfig(profile_steps=(2, 9))
    assert trace(config, tmp_path, 0, 3) == ["steps-00000002-00000003.rank-0000.json.gz: step 2, step 3"]


def test_a_trace_after_a_resume_is_named_by_the_steps_it_has(tmp_path: Path) -> None:
    config = ObserveConfig(profile_steps=(2, 4))
    assert trace(config, tmp_path, 0, 5, done=2) == ["steps-00000003-00000004.rank-0000.json.gz: step 3, step 4"]


def problems(world_size: int | None = 2, **observe: Any) -> list[str]:
    config = replace(tiny_config("block"), observe=ObserveConfig(**observe))
    return [problem.key + ": " + problem.message for problem in rules.problems(config, world_size)]


def test_steps_and_ranks_that_there_are_not_are_refused() -> None:
    assert problems(profile_steps=(3, 20), profile_ranks=(0, 1)) == []
    for steps in ((3, 2), (0, 2), (3, 21)):
        assert problems(profile_steps=steps) == [
            f"observe.profile_steps: {steps[0]} to {steps[1]} are no steps of 1 to training.steps = 20"
        ]
    assert problems(profile_ranks=(0, 2)) == ["observe.profile_ranks: rank 2 is not one of 2, which count from 0"]
    (without_ranks,) = problems(profile_steps=(3, 20), profile_ranks=())
    assert without_ranks == "observe.profile_ranks: no rank, though observe.profile_steps asks for a trace"
    assert problems(profile_ranks=()) == []
    assert problems(world_size=None, profile_ranks=(0, 2)) == [], "a check without --world cannot know"


def test_wandb_gets_curves_of_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []
    run = SimpleNamespace(
        log=lambda values, step: calls.append(("log", (step, dict(values)))),
        finish=lambda: calls.append(("finish", None)),
    )

    def init(**settings: Any) -> Any:
        calls.append(("init", settings))
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Image=None))
    sink = WandbSink("depth", tmp_path / "my run", {"model": {"num_layers": 4}})
    sink.write(7, {"loss/train": 1.5})
    sink.close()
    assert calls[0][1]["project"] == "depth" and calls[0][1]["group"] == "my run"
    assert calls[1:] == [("log", (7, {"loss/train": 1.5})), ("finish", None)]


def test_a_library_that_is_not_there_is_named_before_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(tiny_config("block"), observe=ObserveConfig(wandb_project="depth"))
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (problem,) = rules.file_problems(config)
    assert "pip install wandb" in problem.remedy
