"""The FLOPs that throughput and plan go by, against torch's counter on the model that is really built."""

from __future__ import annotations

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnres_train.model.size import training_flops_per_token
from attnres_train.parallel.grid import build_grid
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import MICRO_BATCH, TOKENS, VOCABULARY, step_batches, tiny_config
from tests.distributed.training import build_tiny


def counted_flops(case: str) -> int:
    """Forward and backward of one micro-batch, with attention as plain products that torch can count."""
    config = tiny_config(case)
    (stage,) = build_tiny(config, build_grid(config.parallel, seed=1)).stages
    stage.set_input_tensor([None])
    batch = step_batches(0)[0]
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        stage(batch.tokens_BT, batch.labels_BT).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("case", ["standard", "block"])
def test_model_flops_are_what_torch_counts(case: str) -> None:
    """Plain products compute the half of attention that causality forbids too, which is no model FLOP."""
    model = tiny_config(case).model
    forbidden = 3 * model.num_layers * 2 * model.hidden_size * TOKENS
    padded = model.padded_vocabulary(VOCABULARY, 1)
    expected = TOKENS * MICRO_BATCH * (training_flops_per_token(model, padded, TOKENS) + forbidden)
    assert run_ranks(counted_flops, 1, case) == [expected]
