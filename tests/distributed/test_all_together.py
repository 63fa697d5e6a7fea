"""Everything at once: tensor, sequence, pipeline, interleaving, data, cache, eager sends, recompute, tied embeddings,
isolated documents, gradient accumulation with unequal token counts, clipping, and evaluations between steps; eight
ranks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from torch import Tensor

from attnres_train.config.run_config import RunConfig
from attnres_train.data.corpus import Sample
from attnres_train.parallel.grid import build_grid
from attnres_train.trainer.evaluation import evaluate
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import END_OF_DOCUMENT, MICRO_BATCH, TOKENS, VOCABULARY, tiny_config
from tests.distributed.training import build_tiny, relative_error, step_tiny, whole_tensors

STEPS = 3
PARALLEL = {"tensor": 2, "sequence": True, "pipeline": 2, "virtual": 2, "eager": True, "history_cache": "on"}


class Outcome(NamedTuple):
    losses: list[float]
    grad_norms: list[float]
    valid: list[float]
    gradients: dict[str, Tensor]


class ValidationSamples:
    """Five of them: no multiple of anything. A document begins at token 5."""

    def __len__(self) -> int:
        return 5

    def samples(self, positions: npt.NDArray[np.integer]) -> list[Sample]:
        rows = [np.random.default_rng(p).integers(0, VOCABULARY, TOKENS + 1) for p in positions.tolist()]
        for row in rows:
            row[5] = END_OF_DOCUMENT
        segments = (np.arange(TOKENS) >= 5).astype(np.int32)
        return [Sample(str(p), row, segments) for p, row in zip(positions, rows, strict=True)]


def train_and_evaluate(config: RunConfig) -> Outcome:
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    losses, norms, valid = [], [], []
    gradients: dict[str, Tensor] = {}
    for step in range(STEPS):
        loss, norm, _ = step_tiny(parts, config, grid, step)
        losses.append(loss)
        norms.append(norm)
        found = evaluate(parts, {"": ValidationSamples()}, MICRO_BATCH, lambda: False)  # type: ignore[dict-item]
        assert found.losses is not None
        valid.append(found.losses[""].mean)
        gradients = whole_tensors(parts.engine.parameters(), parts.engine.pre_clip, grid)
    return Outcome(losses, norms, valid, gradients)


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 2e-5), ("bf16", 1e-2)])
def test_everything_at_once_trains_to_the_numbers_of_one_process(precision: str, bound: float) -> None:
    settings = {"layers": 8, "tied": True, "precision": precision}
    one = run_ranks(train_and_evaluate, 1, tiny_config("block, isolated documents", **settings))[0]
    config = tiny_config("block, isolated documents", recompute="block", **settings, **PARALLEL)
    all_ranks = run_ranks(train_and_evaluate, 8, config)
    assert min(one.grad_norms) > 0.5, "clipping must be active"
    for outcome in all_ranks:
        assert outcome.losses == pytest.approx(one.losses, rel=bound)
        assert outcome.grad_norms == pytest.approx(one.grad_norms, rel=bound)
        assert outcome.valid == pytest.approx(one.valid, rel=bound)
    if precision == "fp32":
        for name, gradient in one.gradients.items():
            assert relative_error(all_ranks[0].gradients[name], gradient) < 5e-5, f"gradient of {name}, step {STEPS}"
