"""At zero queries the network is the standard PreNorm network, in float64 with a tiny eps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnres_train.depth.layout import DepthLayout
from attnres_train.model.describe import describe
from attnres_train.model.megatron import transformer_config
from attnres_train.model.parameters import draw, initialize, logical_parameters
from attnres_train.model.stage import StageModel, StageRole
from attnres_train.parallel.grid import build_grid
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import VOCABULARY, step_batches, tiny_config


def loss_and_gradients(case: str, tied: bool, eps: float = 1e-30) -> tuple[float, dict[str, Tensor]]:
    config = tiny_config(case, tied=tied)
    model = replace(config.model, norm_eps=eps)
    grid = build_grid(config.parallel, seed=1)
    megatron = transformer_config(model, dtype=torch.float64)
    role = StageRole(stage=0, layers=range(model.num_layers), first=True, last=True)
    stage = StageModel(model, config.residual, megatron, grid.groups, role, VOCABULARY, 88).double()
    initialize(stage, seed=1)
    batch = step_batches(0)[0]
    stage.set_input_tensor([None])
    loss = (stage(batch.tokens_BT, batch.labels_BT) * batch.loss_mask_BT).sum()
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in stage.named_parameters()}


@pytest.mark.parametrize("mode", ["full", "block"])
@pytest.mark.parametrize("tied", [False, True])
def test_zero_queries_equal_the_standard_residual(mode: str, tied: bool) -> None:
    (loss, gradients), (standard_loss, standard) = (
        run_ranks(loss_and_gradients, 1, m, tied)[0] for m in (mode, "standard")
    )
    # The mean of n sources is their sum over n, and every consumer starts with a norm that divides n out.
    assert loss == pytest.approx(standard_loss, rel=1e-13)
    for name, gradient in standard.items():
        error = (gradients[name] - gradient).norm() / gradient.norm()
        assert error < 1e-11, name
    own = {name for name in gradients if name not in standard}
    assert {name.rsplit(".", 1)[1] for name in own} == {"query", "gain"}
    assert all(not gradients[name].any() for name in own if name.endswith("gain"))
    live = [name for name in own if name.endswith("query") and gradients[name].any()]
    assert len(live) == 2 * 4, "all queries but the first sublayer's, which has one source, get a gradient"


@pytest.mark.parametrize("case", ["block, norm of the sum", "full, sigmoid, norm of the sum"])
def test_with_the_norm_of_the_sum_that_holds_for_any_eps(case: str) -> None:
    """An eps as large as the mean squares themselves; `norm_of = "mix"` is far off there."""
    loss, gradients = run_ranks(loss_and_gradients, 1, case, False, 1.0)[0]
    standard_loss, standard = run_ranks(loss_and_gradients, 1, "standard", False, 1.0)[0]
    other_loss, _ = run_ranks(loss_and_gradients, 1, "block", False, 1.0)[0]
    assert loss == pytest.approx(standard_loss, rel=1e-13)
    assert abs(other_loss / standard_loss - 1) > 1e-5
    for name, gradient in standard.items():
        error = (gradients[name] - gradient).norm() / gradient.norm()
        assert error < 1e-11, name


def initial_queries() -> list[float]:
    config = tiny_config("block")
    grid = build_grid(config.parallel, seed=1)
    megatron = transformer_config(config.model, dtype=torch.bfloat16)
    role = StageRole(stage=0, layers=range(4), first=True, last=True)
    stage = StageModel(config.model, config.residual, megatron, grid.groups, role, VOCABULARY, 88)
    initialize(stage, seed=1)
    found = []
    for logical in logical_parameters(stage):
        if logical.name.endswith(("depth.query", "depth.gain")):
            assert logical.parameter.dtype == torch.float32 and logical.parameter.ndim == 1
            found.append(logical.parameter.abs().sum().item() if logical.name.endswith("query") else 0.0)
            if logical.name.endswith("gain"):
                assert (logical.parameter == 1).all()
    return found


def test_queries_start_at_exactly_zero_in_fp32_and_keys_at_gain_one() -> None:
    found = run_ranks(initial_queries, 1)[0]
    assert len(found) == 2 * (2 * 4 + 1)
    assert not any(found)


def test_initial_values_depend_on_seed_and_name_alone() -> None:
    config = tiny_config()
    model = config.model
    tensors = {spec.name: spec for spec in describe(model, config.residual, VOCABULARY, 88).all}

    def initial_value(name: str, seed: int) -> Tensor:
        return draw(tensors[name], seed)

    value = initial_value("layers.0.mlp.branch.linear_fc1.weight", seed=1)
    assert value.equal(initial_value("layers.0.mlp.branch.linear_fc1.weight", seed=1))
    assert not value.equal(initial_value("layers.1.mlp.branch.linear_fc1.weight", seed=1))
    assert not value.equal(initial_value("layers.0.mlp.branch.linear_fc1.weight", seed=2))
    assert value.std().item() == pytest.approx(model.init_std, rel=0.05)
    back = initial_value("layers.0.mlp.branch.linear_fc2.weight", seed=1)
    assert back.std().item() == pytest.approx(model.init_std / (2 * model.num_layers) ** 0.5, rel=0.05)


def test_layout_of_the_tiny_model_has_a_short_last_block() -> None:
    layout = DepthLayout.of(tiny_config().residual, 4)
    assert (layout.num_sources, layout.head_reads().partial) == (3, True)
