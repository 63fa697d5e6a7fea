"""The FLOPs that throughput and plan go by, against torch's counter on the model that is really built."""

from __future__ import annotations

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnres_train.depth.config import ResidualConfig
from attnres_train.model.config import ModelConfig
from attnres_train.model.size import depth_flops_per_token, training_flops_per_token
from attnres_train.observe.metrics import LogInterval, MfuTerms, Peaks, step_metrics
from attnres_train.observe.tags import PHASES
from attnres_train.parallel.grid import build_grid
from attnres_train.plan.devices import device_called
from attnres_train.progress import LossSum, StepReport, TrainState
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import MICRO_BATCH, TOKENS, VOCABULARY, step_batches, tiny_config
from tests.distributed.training import build_tiny


def counted_flops(case: str, tied: bool) -> int:
    """Forward and backward of one micro-batch, with attention as plain products that torch can count."""
    config = tiny_config(case, tied=tied)
    (stage,) = build_tiny(config, build_grid(config.parallel, seed=1)).stages
    stage.set_input_tensor([None])
    batch = step_batches(0)[0]
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        stage(batch.tokens_BT, batch.labels_BT).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(("case", "tied"), [("standard", False), ("block", False), ("block", True)])
def test_model_flops_are_what_torch_counts(case: str, tied: bool) -> None:
    """Plain products compute the half of attention that causality forbids too, which is no model FLOP."""
    model = tiny_config(case, tied=tied).model
    forbidden = 3 * model.num_layers * 2 * model.hidden_size * TOKENS
    padded = model.padded_vocabulary(VOCABULARY, 1)
    expected = TOKENS * MICRO_BATCH * (training_flops_per_token(model, padded, TOKENS) + forbidden)
    assert run_ranks(counted_flops, 1, case, tied) == [expected]


@pytest.mark.parametrize(
    ("residual", "scored", "mixed"),
    [
        (ResidualConfig(mode="standard"), 0, 0),
        (ResidualConfig(mode="full"), 1 + 2 + 3 + 4 + 5, 1 + 2 + 3 + 4 + 5),
        (ResidualConfig(mode="block", block_size=2), 1 + 2 + 2 + 3 + 3, 1 + 2 + 2 + 3 + 3),
        (ResidualConfig(mode="denseformer"), 0, 1 + 2 + 3 + 4 + 5),
    ],
    ids=lambda value: getattr(value, "mode", None),
)
def test_flops_of_the_depth_are_a_score_and_a_term_of_the_mix_a_source(
    residual: ResidualConfig, scored: int, mixed: int
) -> None:
    model = ModelConfig(num_layers=2, hidden_size=8, ffn_hidden_size=16, num_attention_heads=2)
    assert depth_flops_per_token(model, residual) == 3 * 2 * 8 * (scored + mixed)


def test_utilisation_is_against_the_dense_peak_of_a_device_that_is_known() -> None:
    h200 = device_called("NVIDIA H200")
    assert h200 is not None and h200.peak_flops_per_second("bf16") == 989e12
    assert device_called("NVIDIA H100 PCIe") is None, "another card than the one of the table"
    state, interval, peaks = TrainState(step=1), LogInterval(2.0, dict.fromkeys(PHASES, 0.1), 1, 4096), Peaks(1.0, 0)
    report = StepReport({"train": LossSum(1.0, 1)}, 1.0, 1e-3, True, 4096, 0, 0, {}, {})
    values = step_metrics(state, report, interval, MfuTerms(1e9, 989e12), devices=2, peaks=peaks)
    assert values["throughput/model_tflops_per_device"] == pytest.approx(1.024)
    assert values["throughput/mfu"] == pytest.approx(1.024 / 989)
    values = step_metrics(state, report, interval, MfuTerms(1e9, None), devices=2, peaks=peaks)
    assert "throughput/mfu" not in values
