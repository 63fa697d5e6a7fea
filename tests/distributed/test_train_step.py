"""The real training step on a grid where no rank has the same place in two groups, against what is counted by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnres_train.config.run_config import RunConfig
from attnres_train.observe.config import ObserveConfig
from attnres_train.parallel.grid import build_grid
from attnres_train.plan.traffic import plan_traffic
from attnres_train.progress import LossSum, TrainState
from attnres_train.trainer.evaluation import evaluate
from attnres_train.trainer.step import train_step
from tests.distributed.loop import SyntheticValidation
from tests.distributed.ranks import run_ranks
from tests.distributed.state import export_state
from tests.distributed.state import gradients as reduced
from tests.distributed.tiny import MICRO_BATCH, MICRO_BATCHES, TOKENS, step_batches, tiny_config
from tests.distributed.training import SyntheticLoader, build_tiny

SAMPLES = MICRO_BATCHES * MICRO_BATCH
PEAK, WARMUP, STEPS = 1e-3, 3, 20
STARTS = (0, 1, 2, 3, 9)
"""Steps done before each of the steps that are looked at; the last has samples that its number does not tell."""
POSITION = 13 * SAMPLES
ASKED = 2
"""At which of them a signal has come, to one rank that holds no loss."""


def stated_rate(step: int) -> float:
    """Of a cosine to zero after a linear warm-up, by hand."""
    if step <= WARMUP:
        return PEAK * step / WARMUP
    return PEAK / 2 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS + 1 - WARMUP)))


def two_by_two_steps(config: RunConfig) -> dict[str, Any]:
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    rates: list[float] = []
    step = parts.engine.step

    def noting(rate: float) -> Any:
        rates.append(rate)
        return step(rate)

    parts.engine.step = noting  # type: ignore[method-assign]
    loader = SyntheticLoader(grid, SAMPLES)
    # Its bytes and its batches are of no training step.
    validation = {"": SyntheticValidation(3)}
    evaluated = evaluate(parts, validation, MICRO_BATCH, lambda: False)  # type: ignore[arg-type]
    reports, states, positions = [], [], []
    for number, done in enumerate(STARTS):
        position = POSITION if done == STARTS[-1] else done * SAMPLES
        losses = {"train": LossSum(7.0, 5)} if number == 1 else {}
        before = TrainState(step=done, samples=position, tokens=100, losses=losses, skipped_in_a_row=2)
        asked = number == ASKED and grid.rank == 1
        state, report, batches = train_step(parts, loader, config, before, {"stop": asked})
        reports.append(report)
        states.append(state)
        positions.append([sample for batch in batches for sample in batch.sample_ids])
    return {
        "rates": rates,
        "reports": reports,
        "states": states,
        "samples": positions,
        "evaluated": evaluated.losses[""].tokens,  # type: ignore[index]
        "updates": parts.engine.updates,
        "place": (grid.tensor_rank, grid.data_rank, grid.pipeline_rank),
        "wire": (parts.pipeline.setup.wire.slices_total, parts.pipeline.setup.wire.slices_back_total),
        "kept": plan_traffic(parts.pipeline.setup).ranks[grid.pipeline_rank].kept_bytes,
        "sends": (parts.pipeline.communicator.forward.chunk_bytes, parts.pipeline.communicator.eager),
    }


def counted(number: int) -> int:
    return int(sum(batch.loss_mask_BT.sum().item() for batch in step_batches(number)))


@pytest.mark.parametrize(
    "parallel",
    [{"tensor": 2}, {"pipeline": 2, "virtual": 2, "exact_gradients": True, "chunk_mib": 3}],
    ids=["tensor 2 x data 2", "pipeline 2 x virtual 2 x data 2, more back than forth"],
)
def test_a_step_is_what_its_samples_and_the_schedule_say(parallel: dict[str, Any]) -> None:
    """Rates, samples, tokens, votes and bytes: what `train_step` does beside the engine."""
    config = replace(tiny_config("block", **parallel), observe=ObserveConfig(log_interval_steps=2))
    found = run_ranks(two_by_two_steps, 4, config)
    numbers = [*STARTS[:-1], POSITION // SAMPLES]
    for rank in found:
        assert rank["rates"] == pytest.approx([stated_rate(done + 1) for done in STARTS], rel=1e-12)
        assert [report.learning_rate for report in rank["reports"]] == rank["rates"]
        assert rank["evaluated"] == 3 * TOKENS, "what fills a round up counts nowhere"
        assert rank["updates"] == len(STARTS)
        assert rank["sends"] == (3 * 2**20 if "chunk_mib" in parallel else None, True), "a CPU posts receives ahead"
        assert [report.kept_bytes for report in rank["reports"]] == [rank["kept"]] * len(STARTS)
        for index, (report, state, number) in enumerate(zip(rank["reports"], rank["states"], numbers, strict=True)):
            assert report.tokens == counted(number) and state.tokens == 100 + counted(number)
            carried = 5 if index == 1 else 0
            assert report.losses["train"].tokens == counted(number) + carried, "tensor ranks hold the same tokens"
            assert state.step == STARTS[index] + 1 and state.samples == number * SAMPLES + SAMPLES
            assert state.losses == ({} if state.step % 2 == 0 else report.losses), "a record ends what is carried"
            assert state.skipped_in_a_row == 0 and state.skipped_steps == 0
            assert report.votes == {"stop": int(index == ASKED)}, "one rank is enough, for its step alone"
            slices, back = rank["wire"]
            assert slices < back or not slices, "or the two could be exchanged"
            slice_bytes = TOKENS * MICRO_BATCH * 32 * 4
            assert report.forward_bytes == slices * slice_bytes * MICRO_BATCHES
            assert report.backward_bytes == back * slice_bytes * MICRO_BATCHES
        assert rank["reports"] == [
            replace(report, seconds=mine.seconds, kept_bytes=mine.kept_bytes)
            for report, mine in zip(found[0]["reports"], rank["reports"], strict=True)
        ], "every rank has the same report"
    for index, number in enumerate(numbers):
        taken = {sample for rank in found for sample in rank["samples"][index]}
        assert taken == {f"sample-{number * SAMPLES + sample}" for sample in range(SAMPLES)}


def hand_made_update(config: RunConfig, steps: int) -> tuple[float, float, float]:
    """Against AdamW by hand, from the gradients before clipping: the largest deviation over the largest change."""
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    engine, chosen = parts.engine, config.optimizer
    masters = {name: state.master.clone() for name, state in export_state(engine).items()}
    first = {name: torch.zeros_like(master) for name, master in masters.items()}
    second = {name: torch.zeros_like(master) for name, master in masters.items()}
    decays = {p.name: p.spec.decays for p in engine.parameters()}
    gradients: dict[str, torch.Tensor] = {}
    step = engine.step

    def keeping(rate: float) -> Any:
        gradients.update({name: gradient.clone() for name, gradient in reduced(engine).items()})
        return step(rate)

    engine.step = keeping  # type: ignore[method-assign]
    loader = SyntheticLoader(grid, SAMPLES)
    largest = 0.0
    norms = []
    for number in range(steps):
        before = {name: master.clone() for name, master in masters.items()}
        _, report, batches = train_step(parts, loader, config, TrainState(step=number, samples=number * SAMPLES), {})
        norm = math.sqrt(sum(gradient.double().square().sum().item() for gradient in gradients.values()))
        assert report.grad_norm == pytest.approx(norm, rel=1e-5)
        norms.append(norm)
        limit = chosen.clip_grad_norm or math.inf
        scale = min(1.0, limit / (norm + 1e-6))
        for name, master in masters.items():
            gradient = gradients[name] * scale
            first[name].lerp_(gradient, 1 - chosen.beta1)
            second[name].lerp_(gradient.square(), 1 - chosen.beta2)
            mean = first[name] / (1 - chosen.beta1 ** (number + 1))
            root = (second[name] / (1 - chosen.beta2 ** (number + 1))).sqrt()
            decay = chosen.weight_decay if decays[name] else 0.0
            master -= stated_rate(number + 1) * (mean / (root + chosen.eps) + decay * master)
        now = {name: state.master for name, state in export_state(engine).items()}
        for name, master in masters.items():
            change = (master - before[name]).abs().max().item()
            largest = max(largest, (now[name] - master).abs().max().item() / (change or 1.0))
    return largest, min(norms), max(norms)


def test_the_update_is_adamw_by_hand_with_the_stated_numbers() -> None:
    """Betas, eps, decay and clipping away from where libraries have them, so that none is a default by chance."""
    base = tiny_config("block")
    chosen = replace(base.optimizer, beta1=0.8, beta2=0.97, eps=1e-3, weight_decay=0.3, clip_grad_norm=0.25)
    ((largest, least_norm, _),) = run_ranks(hand_made_update, 1, replace(base, optimizer=chosen), 3)
    assert least_norm > 0.25, "every step clips"
    assert largest < 1e-3


def test_a_step_that_is_applied_ends_a_row_of_skipped_ones() -> None:
    state = TrainState(step=4, skipped_steps=3, skipped_in_a_row=2)
    skipped = state.after(samples=8, tokens=9, applied=False, losses={})
    assert (skipped.skipped_steps, skipped.skipped_in_a_row) == (4, 3)
    applied = skipped.after(samples=8, tokens=9, applied=True, losses={})
    assert (applied.skipped_steps, applied.skipped_in_a_row) == (4, 0)
