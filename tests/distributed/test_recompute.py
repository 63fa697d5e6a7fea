"""Recomputing changes what is kept, not a bit of what is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnres_train.model.documents import Documents
from attnres_train.model.megatron import transformer_config
from attnres_train.model.parameters import initialize
from attnres_train.model.recompute import Recompute
from attnres_train.model.stage import StageModel, StageRole
from attnres_train.parallel.grid import build_grid
from tests.bench.kept import live_bytes
from tests.cases import CASES, ISOLATED
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import MICRO_BATCH, TOKENS, VOCABULARY, step_batches, tiny_config

MODES: tuple[Recompute, ...] = ("none", "depth", "layer", "block")


def build(case: str, recompute: Recompute, dtype: torch.dtype) -> StageModel:
    config = tiny_config(case)
    grid = build_grid(config.parallel, seed=1)
    megatron = transformer_config(config.model, dtype=dtype)
    role = StageRole(stage=0, layers=range(4), first=True, last=True)
    stage = StageModel(config.model, config.residual, megatron, grid.groups, role, VOCABULARY, 88, recompute).to(dtype)
    initialize(stage, seed=1)
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            if ".depth." in name:
                parameter.add_(torch.randn(parameter.shape, generator=noise), alpha=0.1)
    return stage


def loss_and_gradients(case: str, recompute: Recompute) -> tuple[Tensor, dict[str, Tensor]]:
    stage = build(case, recompute, torch.float64)
    batch = step_batches(0, isolated=case in ISOLATED)[0]
    documents = Documents.of(batch.segments_BT) if batch.segments_BT is not None else None
    stage.set_input_tensor([None])
    loss = (stage(batch.tokens_BT, batch.labels_BT, documents) * batch.loss_mask_BT).sum()
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in stage.named_parameters()}


def all_modes(case: str) -> list[tuple[Tensor, dict[str, Tensor]]]:
    results = [loss_and_gradients(case, MODES[0])]
    from megatron.core import parallel_state

    for recompute in MODES[1:]:
        parallel_state.destroy_model_parallel()
        results.append(loss_and_gradients(case, recompute))
    return results


@pytest.mark.parametrize("case", [*CASES, "block, isolated documents"])
def test_recomputed_gradients_are_those_of_what_is_kept(case: str) -> None:
    (loss, gradients), *others = run_ranks(all_modes, 1, case)[0]
    for other_loss, other in others:
        assert other_loss.equal(loss)
        for name, gradient in gradients.items():
            error = (other[name] - gradient).abs().max()
            assert error <= 1e-12 * gradient.abs().max(), name


def live_after_forward(case: str, recompute: Recompute) -> int:
    stage = build(case, recompute, torch.float32)
    batch = step_batches(0)[0]

    def forward() -> Any:
        stage.set_input_tensor([None])
        return stage(batch.tokens_BT, batch.labels_BT)

    return live_bytes(forward)


def test_a_recomputed_layer_keeps_no_more_than_under_the_standard_residual() -> None:
    """Blocks of one layer: each layer's start is a source, as it is one value of the stream there."""
    block, standard = (run_ranks(live_after_forward, 1, case, "layer")[0] for case in ("block of 2", "standard"))
    # The head is outside of any layer: it keeps 3 scalars a token for each of 5 sources.
    assert block - standard <= 3 * 5 * 4 * TOKENS * MICRO_BATCH


def test_remaking_the_mix_keeps_less_than_keeping_it() -> None:
    slice_bytes = MICRO_BATCH * TOKENS * 32 * 4
    for case in ("standard", "full", "block"):
        kept, remade = (run_ranks(live_after_forward, 1, case, recompute)[0] for recompute in ("none", "depth"))
        assert kept - remade == 8 * slice_bytes, "the normalised input of each of 8 branches"


def test_recomputing_blocks_keeps_the_sources_alone() -> None:
    """Against recompute by layers: blocks of 3 sublayers end in layers 1 and 2, so the partial of layer 0 goes."""
    slice_bytes = MICRO_BATCH * TOKENS * 32 * 4
    layer, block = (run_ranks(live_after_forward, 1, "block", recompute)[0] for recompute in ("layer", "block"))
    assert layer - block == slice_bytes
