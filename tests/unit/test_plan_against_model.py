"""The plan's numbers against the model that is really built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from attnres_train.config.run_config import RunConfig
from attnres_train.parallel.grid import build_grid
from attnres_train.plan import plan
from attnres_train.plan.memory import visit_bytes
from attnres_train.setup import Setup
from attnres_train.trainer.build import build_parts
from tests.bench.kept import live_bytes
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import TOKENS, VOCABULARY, tiny_config


def held_parameters(config: RunConfig) -> int:
    """Of this rank, counted on the tensors."""
    grid = build_grid(config.parallel, seed=1)
    parts = build_parts(Setup.of(config, 2, VOCABULARY), grid)
    return sum(p.numel() for chunk in parts.engine.chunks for p in chunk.parameters())


@pytest.mark.parametrize(
    "settings",
    [
        {"pipeline": 2, "tied": True},
        {"pipeline": 2, "virtual": 2, "case": "full"},
        {"tensor": 2, "sequence": True},
        {"tensor": 2, "qk_norm": False, "case": "standard"},
        {"pipeline": 2, "case": "denseformer"},
        {"pipeline": 2, "case": "gated highway"},
        {"tensor": 2, "case": "full, query from the input, low rank"},
    ],
    ids=str,
)
def test_every_rank_holds_the_parameters_that_the_plan_says(settings: dict[str, Any]) -> None:
    config = tiny_config(**settings)
    counted = run_ranks(held_parameters, 2, config)
    planned = plan(config, 2, VOCABULARY).parameters_per_rank
    tensor = config.parallel.tensor
    assert counted == [planned[rank // tensor] for rank in range(2)]


def standing_bytes(config: RunConfig) -> int:
    """What one micro-batch's forward leaves in memory."""
    grid = build_grid(config.parallel, seed=1)
    stage = build_parts(Setup.of(config, 1, VOCABULARY), grid).engine.chunks[0].module
    tokens = torch.zeros(config.training.micro_batch_size, TOKENS, dtype=torch.long)
    stage.set_input_tensor([None])
    return live_bytes(lambda: stage(tokens, tokens))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", ["none", "depth", "layer", "block"])
@pytest.mark.parametrize("mode", ["standard", "block", "full", "block of 2"])
def test_the_activation_estimate_is_near_what_stands_after_a_forward(mode: str, recompute: str, precision: str) -> None:
    if (mode, recompute) == ("standard", "block"):
        pytest.skip("the standard residual has no blocks")
    config = tiny_config(mode, qk_norm=False, recompute=recompute, precision=precision)
    wide = replace(config.model, hidden_size=64, ffn_hidden_size=176)
    config = replace(config, model=wide)
    (standing,) = run_ranks(standing_bytes, 1, config)
    estimate = visit_bytes(Setup.of(config, 1, VOCABULARY), 0).activations
    assert 0.9 < estimate / standing <= 1.1
