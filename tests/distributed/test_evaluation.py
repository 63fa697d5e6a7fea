"""Evaluation: the same losses on every grid, no more in memory than a round, and a signal that need not wait."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from attnres_train.checkpoint.config import CheckpointConfig
from attnres_train.config.run_config import RunConfig
from attnres_train.data.corpus import Cut
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.data.validation import ValidationData
from attnres_train.errors import ExitCode
from attnres_train.observe.config import ObserveConfig
from attnres_train.parallel.grid import build_grid
from attnres_train.trainer.evaluation import evaluate
from attnres_train.trainer.signals import StopRequest
from tests.distributed.loop import SyntheticValidation, run_loop
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import MICRO_BATCH, TOKENS, VOCABULARY, tiny_config
from tests.distributed.training import build_tiny

SIZES = {"web": 13, "books": 6}  # neither is a multiple of a micro-batch on two data ranks


def look(config: RunConfig, stops: Callable[[int], bool]) -> tuple[Any, list[str]]:
    """Evaluate; the outcome, and what happened in order: `read` of a micro-batch, `run` of a round."""
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    sets = {name: SyntheticValidation(size, seed) for seed, (name, size) in enumerate(SIZES.items())}
    happened: list[str] = []
    run = parts.pipeline.run
    for data in sets.values():
        data.samples = _noting(happened, "read", data.samples)  # type: ignore[method-assign]
    parts.pipeline.run = _noting(happened, "run", run)  # type: ignore[method-assign]
    found = evaluate(parts, sets, MICRO_BATCH, lambda: stops(happened.count("run")))  # type: ignore[arg-type]
    return found, happened


def _noting(happened: list[str], what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        happened.append(what)
        return function(*arguments, **named)

    return call


def never(_rounds: int) -> bool:
    return False


def rank_1_in_its_second_round(rounds: int) -> bool:
    return dist.get_rank() == 1 and rounds == 2


@pytest.mark.parametrize(
    ("ranks", "parallel", "a_round"),
    [(4, {"pipeline": 2}, 2), (2, {"pipeline": 2, "virtual": 2}, 2), (2, {"tensor": 2}, 1)],
    ids=["pipeline and data", "interleaved", "tensor"],
)
def test_every_grid_has_the_losses_of_one_process_and_never_reads_beyond_a_round(
    ranks: int, parallel: dict[str, int], a_round: int
) -> None:
    ((expected, happened),) = run_ranks(look, 1, tiny_config("block"), never)
    assert {name: sums.tokens for name, sums in expected.losses.items()} == {n: s * TOKENS for n, s in SIZES.items()}
    assert happened == ["read", "run"] * 10
    for found, happened in run_ranks(look, ranks, tiny_config("block", **parallel), never):
        assert not found.stop_requested
        for name, sums in found.losses.items():
            assert sums.tokens == expected.losses[name].tokens
            assert sums.loss == pytest.approx(expected.losses[name].loss, rel=1e-5)
        waiting = [len(part.split()) for part in " ".join(happened).split("run")]
        assert max(waiting) == a_round, "more is read ahead than the pipeline takes: memory grows with the set"


def test_a_signal_on_one_rank_ends_it_on_all_after_the_round() -> None:
    for found, happened in run_ranks(look, 4, tiny_config("block", pipeline=2), rank_1_in_its_second_round):
        assert found.losses is None and found.stop_requested
        assert happened.count("run") == 2


class AskedInEvaluation(StopRequest):
    """A signal that comes when a validation set has been read for the n-th time."""

    def __init__(self, data: SyntheticValidation, reads: int):
        super().__init__(lambda: None)
        self.data, self.reads = data, reads

    def asked(self) -> bool:
        if len(self.data.reads) >= self.reads:
            self.received = signal.SIGTERM
        return super().asked()


def config(**training: Any) -> RunConfig:
    base = tiny_config("block")
    return replace(
        base,
        training=replace(base.training, steps=4, eval_interval_steps=2, **training),
        checkpoint=CheckpointConfig(interval_steps=None),
        observe=ObserveConfig(tensorboard=False, depth_interval=None),
    )


def go(config: RunConfig, folder: Path, asked_at: int = 10**6, mark: str = "x", **sizes: int) -> tuple[Any, list[str]]:
    sets = {name.strip("_"): SyntheticValidation(size) for name, size in (sizes or {"_": 9}).items()}
    stop = AskedInEvaluation(next(iter(sets.values())), asked_at)
    return run_loop(config, folder, stop, sets, {"valid": mark})


def losses(folder: Path) -> list[tuple[int, float]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [(line["step"], line["loss/valid"]) for line in lines if "loss/valid" in line]


@pytest.mark.parametrize(("asked_at", "step"), [(2, 2), (7, 4)], ids=["on the way", "at the end"])
def test_an_evaluation_cut_by_a_signal_is_made_up_for_by_the_next_process(
    asked_at: int, step: int, tmp_path: Path
) -> None:
    """Evaluations of the step that a stop fell on are lost: marin-community/marin#1909."""
    ((code, _),) = run_ranks(go, 1, config(), tmp_path / "whole")
    whole = losses(tmp_path / "whole")
    assert code is ExitCode.DONE and [at for at, _ in whole] == [2, 4]
    ((code, told),) = run_ranks(go, 1, config(), tmp_path / "cut", asked_at)
    assert code is ExitCode.STOPPED_ON_SIGNAL
    assert f"step {step}  the evaluation was cut short by a signal: nothing of it is recorded" in told
    assert f"stopped on a signal after step {step}; run the same command to go on" in told[-4:]
    assert losses(tmp_path / "cut") == [one for one in whole if one[0] < step]
    ((code, _),) = run_ranks(go, 1, config(), tmp_path / "cut")
    assert code is ExitCode.DONE and losses(tmp_path / "cut") == whole
    ((code, told),) = run_ranks(go, 1, config(), tmp_path / "cut")
    assert "complete: 4 of 4 steps are done, nothing to train" in told[-4:] and losses(tmp_path / "cut") == whole


def test_a_signal_in_the_last_round_of_all_has_nothing_to_stop(tmp_path: Path) -> None:
    ((code, _),) = run_ranks(go, 1, config(), tmp_path, 10)
    assert code is ExitCode.DONE and [step for step, _ in losses(tmp_path)] == [2, 4]


def test_a_finished_run_tells_the_loss_on_other_validation_data(tmp_path: Path) -> None:
    ((code, _),) = run_ranks(go, 1, config(), tmp_path, 5, "first")
    assert code is ExitCode.STOPPED_ON_SIGNAL and [step for step, _ in losses(tmp_path)] == [2]
    ((code, told),) = run_ranks(go, 1, config(), tmp_path)
    assert code is ExitCode.DONE and not any(line.startswith("step 2  validation") for line in told), "it owes nothing"
    before = losses(tmp_path)
    assert [step for step, _ in before] == [2, 4]
    ((code, told),) = run_ranks(go, 1, config(), tmp_path, 10**6, "other")
    assert code is ExitCode.DONE
    # The curve is no longer one curve: TensorAuto/OpenTau#502.
    assert "  data.valid has other samples than before: loss/valid does not go on from the values it had" in told
    value = f"{before[-1][1]:.4f} nats a token, {before[-1][1] / math.log(2) / 4:.4f} bits a byte"
    assert any(line.startswith(f"step 4  validation loss {value} (") for line in told)
    assert losses(tmp_path) == before, "the curve goes on meaning what it meant"


def memory_of_evaluations(folder: Path, sizes: tuple[int, int]) -> list[float]:
    """MiB that this process holds after evaluations of so many samples of a corpus, each read for the first time."""
    base = tiny_config("standard", layers=1)
    config = replace(base, training=replace(base.training, sequence_length=2048, micro_batch_size=1))
    parts = build_tiny(config, build_grid(config.parallel, seed=1))
    held = []
    for size in (1, *sizes):
        data = ValidationData({str(folder / "valid"): 1.0}, Cut(2048, VOCABULARY), size)
        evaluate(parts, {"": data}, 1, lambda: False)
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
        held.append(pages * os.sysconf("SC_PAGESIZE") / 2**20)
    return held


@pytest.mark.slow
def test_memory_does_not_grow_with_the_validation_set(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "valid", VOCABULARY) as writer:
        for _ in range(8):
            writer.add_documents(np.zeros(100 * 2048, np.int64), np.array([100 * 2048]))
        writer.finish()
        writer.publish()
    ((_, small, large),) = run_ranks(memory_of_evaluations, 1, tmp_path, (64, 700))
    assert large - small < 8, "a sample that stays takes 43 kB, its page of the file 4"
