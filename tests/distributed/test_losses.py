"""The training loss that is recorded: a mean over the tokens of all steps, ranks and micro-batches since the last."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnres_train.config.run_config import RunConfig
from attnres_train.data.config import DataConfig
from attnres_train.observe.config import ObserveConfig
from attnres_train.parallel.grid import build_grid
from attnres_train.progress import LossSum, TrainState
from attnres_train.trainer.step import train_step
from tests.distributed.loop import SyntheticLoader, run_loop
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import tiny_config
from tests.distributed.training import build_tiny

BLEND = {"corpora/en/train": 2.0, "corpora/de/train": 1.0}


def config(interval: int = 1, stop_after: int | None = None, **parallel: int) -> RunConfig:
    base = tiny_config("block", **parallel)
    return replace(
        base,
        data=DataConfig(train=BLEND),
        training=replace(base.training, steps=6, stop_after_steps=stop_after),
        observe=ObserveConfig(log_interval_steps=interval, tensorboard=False, depth_interval=None),
    )


def recorded(folder: Path) -> dict[int, dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {one["step"]: one for line in lines if "loss/train" in (one := json.loads(line))}


def mean_of(each: dict[int, dict[str, float]], steps: range) -> float:
    """Over the tokens of `steps`, from the records of every step."""
    tokens = {step: each[step]["tokens"] - (each[step - 1]["tokens"] if step > 1 else 0) for step in steps}
    return sum(each[step]["loss/train"] * tokens[step] for step in steps) / sum(tokens.values())


def test_a_record_is_the_mean_since_the_last_one_on_every_grid_and_across_a_resume(tmp_path: Path) -> None:
    """A mean that begins anew or counts twice after a resume: NVIDIA/Megatron-LM#6237."""
    run_ranks(run_loop, 1, config(), tmp_path / "each")
    each = recorded(tmp_path / "each")
    run_ranks(run_loop, 1, config(3), tmp_path / "whole")
    for stop_after in (4, None):
        run_ranks(run_loop, 1, config(3, stop_after), tmp_path / "broken")
        run_ranks(run_loop, 4, config(3, stop_after, pipeline=2), tmp_path / "grid")
    whole, broken, grid = (recorded(tmp_path / name) for name in ("whole", "broken", "grid"))
    assert list(whole) == [3, 6] and list(broken) == list(grid) == [3, 4, 6], "the last step of a process, too"
    tags = ("loss/train", "loss/train/en", "loss/train/de")
    assert [[broken[step][tag] for tag in tags] for step in whole] == [
        [one[tag] for tag in tags] for one in whole.values()
    ]
    expected = {3: mean_of(each, range(1, 4)), 4: each[4]["loss/train"], 6: mean_of(each, range(4, 7))}
    assert {step: broken[step]["loss/train"] for step in broken} == pytest.approx(expected, rel=1e-12)
    for step, record in grid.items():
        assert [record[tag] for tag in tags] == pytest.approx([broken[step][tag] for tag in tags], rel=1e-5)
    assert abs(expected[6] - each[6]["loss/train"]) > 1e-3, "a mean that is one step's value would pass"


def one_step(config: RunConfig) -> tuple[dict[str, LossSum], dict[str, LossSum]]:
    """What `train_step` reports, and the sums over this step's samples of each source alone."""
    grid = build_grid(config.parallel, seed=1)
    parts, loader = build_tiny(config, grid), SyntheticLoader(grid, config.training.global_batch_size)
    alone = {}
    for number, name in enumerate(("en", "de")):
        masked = [
            batch._replace(loss_mask_BT=batch.loss_mask_BT * (torch.tensor(batch.sources) == number)[:, None])
            for batch in loader.step(0)
        ]
        with torch.no_grad():
            alone[name] = parts.pipeline.run(parts.engine.chunks, masked, forward_only=True).totals.whole
    _, report, _ = train_step(parts, loader, config, TrainState(), {})
    return dict(report.losses), alone


def test_the_loss_of_a_source_is_that_of_its_samples_on_every_grid() -> None:
    ((expected, alone),) = run_ranks(one_step, 1, config())
    for name, of_source in alone.items():
        assert expected[f"train/{name}"].tokens == of_source.tokens > 0
        assert expected[f"train/{name}"].loss == pytest.approx(of_source.loss, rel=1e-6)
    assert alone["en"].plus(alone["de"]).tokens == expected["train"].tokens
    for reported, _ in run_ranks(one_step, 4, config(tensor=2)):
        assert {name: of_name.tokens for name, of_name in reported.items()} == {
            n: s.tokens for n, s in expected.items()
        }
        assert [s.loss for s in reported.values()] == pytest.approx([s.loss for s in expected.values()], rel=1e-5)
