"""The plan's numbers against the model that is really built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from attnres_train.config.resolve import resolved_split
from attnres_train.config.run_config import RunConfig
from attnres_train.parallel.grid import build_grid
from attnres_train.plan import plan
from attnres_train.trainer.build import build_parts
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import TOKENS, VOCABULARY, tiny_config


def held_parameters(config: RunConfig) -> int:
    """Of this rank, counted on the tensors."""
    grid = build_grid(config.parallel, seed=1)
    parts = build_parts(config, grid, resolved_split(config, VOCABULARY), VOCABULARY)
    return sum(p.numel() for chunk in parts.engine.chunks for p in chunk.parameters())


@pytest.mark.parametrize(
    "settings",
    [
        {"pipeline": 2, "tied": True},
        {"pipeline": 2, "virtual": 2, "mode": "full"},
        {"tensor": 2, "sequence": True},
        {"tensor": 2, "qk_norm": False, "mode": "standard"},
    ],
    ids=str,
)
def test_every_rank_holds_the_parameters_that_the_plan_says(settings: dict[str, Any]) -> None:
    config = tiny_config(**settings)
    counted = run_ranks(held_parameters, 2, config)
    planned = plan(config, 2, VOCABULARY).parameters_per_rank
    tensor = config.parallel.tensor
    assert counted == [planned[rank // tensor] for rank in range(2)]


def kept_bytes(config: RunConfig) -> int:
    """What autograd keeps of the forward of one micro-batch, the weights left out, each storage once."""
    grid = build_grid(config.parallel, seed=1)
    stage = build_parts(config, grid, (config.model.num_layers,), VOCABULARY).engine.chunks[0].module
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*stage.parameters(), *stage.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in weights:
            kept[address] = tensor  # held, so that no address is used twice
        return tensor

    tokens = torch.zeros(config.training.micro_batch_size, TOKENS, dtype=torch.long)
    stage.set_input_tensor([None])
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        stage(tokens, tokens)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("mode", ["block", "full"])
def test_the_activation_estimate_is_near_what_autograd_keeps_in_fp32(mode: str) -> None:
    """The CPU's RMSNorm keeps somewhat more than the estimate supposes, so it errs low here."""
    config = tiny_config(mode, qk_norm=False)
    wide = replace(config.model, hidden_size=64, ffn_hidden_size=176)
    config = replace(config, model=wide)
    (kept,) = run_ranks(kept_bytes, 1, config)
    assert 0.85 < plan(config, 1, VOCABULARY).memory.activations / kept <= 1.02
