"""Which parameters decay, and what a step without gradients or with bad ones does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnres_train.parallel.grid import build_grid
from tests.distributed.ranks import run_ranks
from tests.distributed.state import export_state
from tests.distributed.tiny import step_batches, tiny_config
from tests.distributed.training import build_tiny

RATE = 0.01


def step_on_masked_batches(
    poison: float | None, precision: str, case: str = "block"
) -> tuple[dict[str, tuple[Tensor, Tensor]], float, bool]:
    """Weights before and after one step whose batches count no token; one gradient becomes `poison` instead."""
    config = tiny_config(case, pipeline=2, precision=precision)
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    engine = parts.engine
    before = {name: state.master.clone() for name, state in export_state(engine).items()}
    engine.zero_grad()
    batches = [replace(batch, loss_mask_BT=torch.zeros_like(batch.loss_mask_BT)) for batch in step_batches(0)]
    parts.pipeline.run(engine.chunks, batches)
    if poison is not None and grid.rank == 1:
        engine.parameters()[0].parameter.main_grad.view(-1)[0] = poison
    update = engine.step(RATE)
    after = {name: state.master.clone() for name, state in export_state(engine).items()}
    return {name: (before[name], after[name]) for name in before}, update.grad_norm, update.applied


DECAY = ("embedding.weight", "projection.weight", "linear_qkv.weight", "linear_proj.weight", "linear_fc1.weight",
         "linear_fc2.weight", "key_projection", "query_projection")  # fmt: skip


@pytest.mark.parametrize(
    ("case", "precision", "keeps"),
    [
        ("block", "fp32", "depth.query"),
        ("block", "bf16", "depth.gain"),
        ("full, static", "fp32", "depth.logits"),  # a matrix by its shape: [sources, heads]
        ("full, query from the input, low rank", "fp32", "depth.gain"),
        ("gated branch", "fp32", "depth.gate"),
    ],
)
def test_without_gradients_only_what_its_module_says_decays(case: str, precision: str, keeps: str) -> None:
    """By the owner's word, not by the number of dimensions (ServiceNow/Fast-LLM#542)."""
    decay = 1 - RATE * tiny_config().optimizer.weight_decay
    for weights, grad_norm, applied in run_ranks(step_on_masked_batches, 2, None, precision, case):
        assert applied and grad_norm == 0.0
        for name, (before, after) in weights.items():
            if name.endswith(DECAY):
                assert torch.allclose(after, before * decay, rtol=1e-6, atol=0), f"{name} does not decay"
            else:
                assert after.equal(before), f"{name} decays"
        assert any(name.endswith(keeps) for name in weights)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "-inf"])
def test_what_is_not_finite_on_one_rank_skips_the_step_on_all_and_leaves_every_weight(poison: float) -> None:
    for weights, grad_norm, applied in run_ranks(step_on_masked_batches, 2, poison, "fp32"):
        assert not applied and not math.isfinite(grad_norm)
        for name, (before, after) in weights.items():
            assert after.equal(before), name
