"""What one `train_step` does, against torch's own arithmetic and on grids on which no two ranks coincide."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from attnres_train.config.run_config import RunConfig
from attnres_train.parallel.grid import Grid, build_grid
from attnres_train.progress import StepReport, TrainState
from attnres_train.trainer.build import Parts
from attnres_train.trainer.step import train_step
from tests.distributed.ranks import run_ranks
from tests.distributed.state import export_state
from tests.distributed.tiny import MICRO_BATCH, MICRO_BATCHES, TOKENS, tiny_config
from tests.distributed.training import SyntheticLoader, build_tiny

STEPS = 3
SAMPLES = MICRO_BATCHES * MICRO_BATCH


def mean_gradients(parts: Parts, loader: SyntheticLoader, samples: int) -> dict[str, Tensor]:
    """Of the mean loss over a step's counted tokens, by autograd alone."""
    (stage,) = parts.stages
    named = dict(stage.named_parameters())
    total, tokens = torch.zeros(()), 0.0
    for batch in loader.step(samples):
        stage.set_input_tensor([None])
        total = total + (stage(batch.tokens_BT, batch.labels_BT) * batch.loss_mask_BT).sum()
        tokens += float(batch.loss_mask_BT.sum())
    found = torch.autograd.grad(total / tokens, list(named.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), found, strict=True)}


class Reached(NamedTuple):
    """By name. Moments too: a scale of all gradients does not show in AdamW's weights."""

    weights: dict[str, Tensor]
    first: dict[str, Tensor]
    second: dict[str, Tensor]


def adamw(config: RunConfig, decays: dict[str, bool], start: dict[str, Tensor], gradients_of: Any) -> Reached:
    """After `STEPS` steps: linear warm-up, clipping by the whole norm, decoupled decay; in float64."""
    optimizer, schedule = config.optimizer, config.schedule
    weights = {name: value.double() for name, value in start.items()}
    first, second = ({name: torch.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    for step in range(1, STEPS + 1):
        gradients = {name: g.double() for name, g in gradients_of(weights, step).items()}
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
        assert optimizer.clip_grad_norm is not None
        assert (norm > optimizer.clip_grad_norm) == (optimizer.clip_grad_norm < 1), "0.5 clips, 100 must not"
        rate = optimizer.learning_rate * step / schedule.warmup_steps
        for name, gradient in gradients.items():
            clipped = gradient * min(1.0, optimizer.clip_grad_norm / norm)
            first[name].mul_(optimizer.beta1).add_(clipped, alpha=1 - optimizer.beta1)
            second[name].mul_(optimizer.beta2).add_(clipped.square(), alpha=1 - optimizer.beta2)
            mean = first[name] / (1 - optimizer.beta1**step)
            root = (second[name] / (1 - optimizer.beta2**step)).sqrt()
            kept = 1 - rate * optimizer.weight_decay * decays[name]
            weights[name] = weights[name] * kept - rate * mean / (root + optimizer.eps)
    return Reached(weights, first, second)


def trained_and_expected(config: RunConfig) -> tuple[Reached, Reached, list[float]]:
    grid = build_grid(config.parallel, seed=1)
    loader = SyntheticLoader(grid, SAMPLES)
    other, ours = build_tiny(config, grid), build_tiny(config, grid)
    stage = other.stages[0]
    start = {name: p.detach().clone() for name, p in stage.named_parameters()}

    def gradients_of(weights: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        with torch.no_grad():
            for name, parameter in stage.named_parameters():
                parameter.copy_(weights[name])
        return mean_gradients(other, loader, (step - 1) * SAMPLES)

    decays = {spec.name: spec.decays for spec in stage.tensors}
    expected = adamw(config, decays, start, gradients_of)
    state, rates = TrainState(), []
    for _ in range(STEPS):
        state, report, _ = train_step(ours, loader, config, state, {})
        rates.append(report.learning_rate)
    assert (state.step, state.samples) == (STEPS, STEPS * SAMPLES)
    weights = {name: p.detach().clone() for name, p in ours.stages[0].named_parameters()}
    states = export_state(ours.engine)
    first = {name: states[name].first_moment.double() for name in weights}
    second = {name: states[name].second_moment.double() for name in weights}
    return Reached(weights, first, second), expected, rates


@pytest.mark.parametrize("clip", [0.5, 100.0])
@pytest.mark.parametrize("zero", [None, 1])
def test_steps_are_adamw_on_clipped_gradients_of_the_mean_loss_at_the_rates_of_the_schedule(
    zero: int | None, clip: float
) -> None:
    config = tiny_config("block", clip=clip, zero=None if zero is None else {"stage": zero})
    assert config.schedule.warmup_steps == STEPS
    ((got, expected, rates),) = run_ranks(trained_and_expected, 1, config)
    assert rates == pytest.approx([config.optimizer.learning_rate * n / STEPS for n in range(1, STEPS + 1)])
    for name, weight in expected.weights.items():
        assert torch.allclose(got.weights[name].double(), weight, rtol=0, atol=2e-6), name
        assert torch.allclose(got.first[name].double(), expected.first[name], rtol=1e-4, atol=1e-7), name
        assert torch.allclose(got.second[name].double(), expected.second[name], rtol=1e-4, atol=1e-12), name


def one_step(config: RunConfig, stops: int, writes: int, fails: int) -> tuple[StepReport, TrainState, dict[str, Any]]:
    """The step after the fifth; ranks of these numbers ask to stop, still write, have failed to."""
    grid = build_grid(config.parallel, seed=1)
    parts, asked = build_tiny(config, grid), []

    class Asked(SyntheticLoader):
        def step(self, consumed_samples: int) -> list[Any]:
            asked.append(consumed_samples)
            return super().step(consumed_samples)

    state = TrainState(step=5, samples=5 * SAMPLES, tokens=1000)
    votes = {"stop": grid.rank == stops, "writing": grid.rank == writes, "failed": grid.rank == fails}
    state, report, batches = train_step(parts, Asked(grid, SAMPLES), config, state, votes)
    tokens = sum(float(batch.loss_mask_BT.sum()) for batch in batches)
    return (
        report,
        state,
        {"asked": asked, "tokens": tokens, "owner": grid.owns_loss, "rank": _place(grid)},
    )


def _place(grid: Grid) -> tuple[int, int, int]:
    return grid.pipeline_rank, grid.data_rank, grid.tensor_rank


def test_ranks_agree_on_what_one_of_them_says() -> None:
    """Three stages beside two replicas, which share the micro-batches."""
    found = run_ranks(one_step, 6, tiny_config("block", pipeline=3), 4, 3, 2)
    reports = [report for report, _, _ in found]
    assert len({str({k: v for k, v in vars(r).items() if k not in ("seconds", "kept_bytes")}) for r in reports}) == 1
    report, state, _ = found[0]
    assert report.votes == {"stop": 1, "writing": 1, "failed": 1}
    owners = [said for _, _, said in found if said["owner"]]
    assert len(owners) == 2 and {said["rank"][0] for said in owners} == {2}
    assert report.tokens == sum(said["tokens"] for said in owners) < 2 * SAMPLES * TOKENS
    assert (state.step, state.samples, state.tokens) == (6, 6 * SAMPLES, 1000 + report.tokens)
    assert all(said["asked"] == [5 * SAMPLES] for _, _, said in found)
    # Blocks of 3 sublayers on 2, 1 and 1 layers: sources 0, 1 and a partial cross first, then 0, 1 and 2.
    slice_bytes = TOKENS * MICRO_BATCH * 32 * 4
    assert report.forward_bytes == report.backward_bytes == (3 + 3) * MICRO_BATCHES * slice_bytes


def test_nobody_stops_where_nobody_asked() -> None:
    ((report, _, _),) = run_ranks(one_step, 1, tiny_config("standard"), -1, -1, -1)
    assert report.votes == {"stop": 0, "writing": 0, "failed": 0}
