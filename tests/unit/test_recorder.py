"""What the seconds and tokens of a record count: all steps since the one before, and neither evaluations nor saves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from attnres_train.observe import recorder as module
from attnres_train.observe.metrics import MfuTerms, Peaks
from attnres_train.observe.recorder import Recorder
from attnres_train.observe.tags import PHASES
from attnres_train.parallel.grid import Grid
from attnres_train.progress import LossSum, StepReport, TrainState
from tests.distributed.tiny import tiny_config


def report(tokens: int, spent: float) -> StepReport:
    return StepReport(
        losses={"train": LossSum(3.0 * tokens, tokens)},
        grad_norm=0.5,
        learning_rate=1e-3,
        applied=True,
        tokens=tokens,
        forward_bytes=0,
        backward_bytes=0,
        votes={},
        seconds=dict.fromkeys(PHASES, spent),
        kept_bytes=7,
    )


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_samples_are_recorded_in_the_order_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-batch by micro-batch, of the replicas in turn; each replica is told by one of its ranks."""
    told = [(1, [["c", "d"], ["g", "h"]]), None, None, (0, [["a", "b"], ["e", "f"]])]
    mine: list[Any] = []

    def gather(everybody: list[Any], own: Any, group: Any) -> None:
        mine.append(own)
        everybody[:] = told

    monkeypatch.setattr(module, "dist", SimpleNamespace(all_gather_object=gather))
    config = tiny_config()
    observe = replace(config.observe, log_interval_steps=10, tensorboard=False, depth_interval=None, sample_log=True)
    for speaks in (True, False):
        grid = SimpleNamespace(keeps_run=speaks, world_size=4, data_rank=0, speaks_for_replica=speaks, control=None)
        state = TrainState(step=1)
        made = Recorder(replace(config, observe=observe), cast(Grid, grid), tmp_path, TrainState(), MfuTerms(1e6, None))
        made.step(state, report(10, 0.0), [["a", "b"], ["e", "f"]], last=False)
        made.close()
    assert mine == [(0, [["a", "b"], ["e", "f"]]), None]
    (line,) = (tmp_path / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == {"step": 1, "samples": list("abcdefgh")}


def test_seconds_and_tokens_are_those_of_the_steps_since_the_last_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(module, "over_ranks", lambda _grid, kept, phases: (Peaks(1.0, kept), dict(phases)))
    config = tiny_config()
    observe = replace(config.observe, log_interval_steps=2, tensorboard=False, depth_interval=None)
    grid = cast(Grid, SimpleNamespace(keeps_run=True, world_size=2))
    state = TrainState(step=10, samples=80, tokens=1000)
    recorder = Recorder(replace(config, observe=observe), grid, tmp_path, state, MfuTerms(1e6, None))

    def trained(tokens: int, seconds: float, *, last: bool = False) -> None:
        nonlocal state
        now[0] += seconds
        state = state.after(samples=8, tokens=tokens, applied=True, losses={})
        recorder.step(state, report(tokens, seconds / 10), [], last=last)

    trained(30, 1.0)
    trained(50, 3.0)
    now[0] += 1000.0  # an evaluation
    recorder.evaluation(state, {"": LossSum(2.0, 1)}, {"": None}, 1000.0)
    trained(40, 2.0)
    trained(20, 5.0)
    now[0] += 500.0  # the loop waits for the save before
    recorder.checkpoint_started(state, 500.0)
    trained(10, 4.0, last=True)
    recorder.close()
    steps = [record for record in records(tmp_path) if "loss/train" in record]
    assert [record["step"] for record in steps] == [12, 14, 15], "the last of a process is recorded, due or not"
    assert [record["time/step_seconds"] for record in steps] == [2.0, 3.5, 4.0]
    assert [record["throughput/tokens_per_second"] for record in steps] == [20.0, 60 / 7, 2.5]
    assert [record["throughput/tokens_per_second_per_device"] for record in steps] == [10.0, 30 / 7, 1.25]
    for phase in PHASES:  # what a save keeps waiting is no phase of a step, nor what came before it
        assert [record[f"time/{phase}_seconds"] for record in steps] == pytest.approx([0.2, 0.35, 0.4])
    assert [(record["tokens"], record["samples"]) for record in steps] == [(1080, 96), (1140, 112), (1150, 120)]
    (evaluated,) = [record for record in records(tmp_path) if "loss/valid" in record]
    assert (evaluated["step"], evaluated["loss/valid"]) == (12, 2.0)
    (saved,) = [record for record in records(tmp_path) if "time/checkpoint_seconds" in record]
    assert (saved["step"], saved["time/checkpoint_seconds"]) == (14, 500.0)
