"""A step whose gradient is not finite changes nothing, is counted and named, and ends the run if it lasts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attnres_train.checkpoint.config import CheckpointConfig
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.config.run_config import RunConfig
from attnres_train.parallel import pipeline
from attnres_train.strict_json import loads
from tests.distributed.loop import run_loop
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import MICRO_BATCHES, tiny_config

BAD_RANK = 1


def config(**training: object) -> RunConfig:
    base = tiny_config("block")
    return replace(
        base,
        training=replace(base.training, steps=8, **training),
        checkpoint=CheckpointConfig(interval_steps=1, keep=None),
    )


def train_with_bad_steps(config: RunConfig, folder: Path, bad_steps: range) -> list[str]:
    """Rank 1's second micro-batch has a loss that is not a number in `bad_steps`, counted from 1."""
    masked_loss, calls = pipeline._masked_loss, 0
    micro_batches = MICRO_BATCHES // 2

    def spoilt(*arguments: object) -> object:
        nonlocal calls
        loss, tokens, (reported, counted) = masked_loss(*arguments)  # type: ignore[arg-type]
        step, number = divmod(calls, micro_batches)
        calls += 1
        if dist.get_rank() == BAD_RANK and step + 1 in bad_steps and number == 1:
            loss, reported = loss * math.nan, reported * math.nan
        return loss, tokens, (reported, counted)

    pipeline._masked_loss = spoilt  # type: ignore[assignment]
    try:
        return run_loop(config, folder)[1]
    except RuntimeError as error:
        return [str(error)]


def logged(folder: Path) -> dict[int, dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    records = [loads(line) for line in lines]
    return {record["step"]: record for record in records if "loss/train" in record}


def state_checksums(folder: Path, step: int) -> dict[str, str]:
    files = read_manifest(folder / f"checkpoints/step-{step:08d}").files
    return {name: record.crc32 for name, record in files.items() if name.endswith(".distcp")}


def test_one_bad_step_is_skipped_by_all_ranks_counted_and_named(tmp_path: Path) -> None:
    told, other = run_ranks(train_with_bad_steps, 2, config(), tmp_path, range(5, 6))
    steps = logged(tmp_path)
    assert math.isnan(steps[5]["loss/train"]) and math.isfinite(steps[6]["loss/train"])
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    strictly = [json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON")) for line in lines]
    assert [one["loss/train"] for one in strictly if one["step"] == 5 and "loss/train" in one] == ["NaN"]
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    curves = {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in ("loss/train", "optim/skipped_steps")}
    assert math.isnan(curves["loss/train"][5]) and curves["optim/skipped_steps"][5] == 1
    assert [steps[step]["optim/skipped_steps"] for step in (4, 5, 8)] == [0, 1, 1]
    # Samples 32 to 39 are step 5's; rank 1's second micro-batch of two holds the last two.
    line = next(line for line in told if "gradient norm" in line)
    assert line == "step 5: gradient norm nan, skipped; rank 1: samples sample-38, sample-39"
    assert line in other
    assert state_checksums(tmp_path, 5) == state_checksums(tmp_path, 4) != state_checksums(tmp_path, 6)


def test_lasting_bad_steps_end_the_run_at_the_stated_limit(tmp_path: Path) -> None:
    for told in run_ranks(train_with_bad_steps, 2, config(stop_after_skipped_steps=3), tmp_path, range(5, 100)):
        assert "3 steps in a row had a gradient that is not finite" in told[0]
        assert "The first one: step 5: gradient norm nan, skipped; rank 1: samples sample-38, sample-39" in told[0]
    assert max(logged(tmp_path)) == 7
    saved = read_manifest(tmp_path / "checkpoints/step-00000006")
    assert (saved.skipped_in_a_row, saved.optimizer_updates) == (2, 4)
    assert state_checksums(tmp_path, 6) == state_checksums(tmp_path, 4)


@pytest.mark.parametrize(("limit", "last"), [(1, 5), (None, 8)])
def test_the_limit_may_be_the_first_bad_step_or_none(limit: int | None, last: int, tmp_path: Path) -> None:
    run_ranks(train_with_bad_steps, 2, config(stop_after_skipped_steps=limit), tmp_path, range(5, 100))
    assert max(logged(tmp_path)) == last
