"""Between the first forward of a step and the end of its last backward the host waits for nothing on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from attnres_train.config.run_config import RunConfig
from attnres_train.model.documents import Documents
from attnres_train.parallel import feed as feed_module
from attnres_train.parallel.grid import build_grid
from tests.cases import CASES, PUBLISHED
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import step_batches, tiny_config
from tests.distributed.training import build_tiny
from tests.synchronization import noted, synchronizations


def found_in(configs: Sequence[RunConfig]) -> list[list[str]]:
    """Of each configuration, on the ranks of one grid: what synchronizes in a step."""
    grid, found = build_grid(configs[0].parallel, seed=1), []
    for config in configs:
        parts = build_tiny(config, grid)
        batches = step_batches(0, grid.data_rank, grid.data, config.data.isolate_documents)
        parts.engine.zero_grad()
        with synchronizations(parts.pipeline) as told:
            parts.pipeline.run(parts.engine.chunks, batches)
        found.append(told)
    return found


CONFIGS: list[tuple[str, dict[str, Any]]] = [
    *((case, {}) for case in CASES),
    ("standard, isolated documents", {}),
    ("block, isolated documents", {}),
    ("block", {"recompute": "depth"}),
    ("full", {"recompute": "layer"}),
    ("block", {"recompute": "block"}),
    ("block", {"tied": True, "precision": "bf16"}),
]


FEW = CONFIGS[-6:]


@pytest.mark.parametrize(
    ("ranks", "parallel", "cases"),
    [
        pytest.param(1, {}, CONFIGS, marks=pytest.mark.slow),
        (1, {}, [*((case, {}) for case in PUBLISHED), *FEW]),
        (2, {"pipeline": 2, "history_cache": "off"}, FEW),
        (2, {"pipeline": 2, "virtual": 2, "eager": False, "offload": True}, FEW),
        (2, {"tensor": 2, "sequence": True}, FEW),
    ],
)
def test_nothing_in_a_step_waits_for_the_device(
    ranks: int, parallel: dict[str, Any], cases: list[tuple[str, dict[str, Any]]]
) -> None:
    configs = [tiny_config(case, **settings, **parallel) for case, settings in cases]
    for of_rank in run_ranks(found_in, ranks, configs):
        for (case, settings), told in zip(cases, of_rank, strict=True):
            assert not told, (case, settings, told[0])


def norms(config: RunConfig) -> tuple[float, float, int]:
    """Ours, megatron-core's, and how often ours waits for the device."""
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    engine: Any = parts.engine
    engine.zero_grad()
    parts.pipeline.run(engine.chunks, step_batches(0, grid.data_rank, grid.data))
    engine.optimizer.prepare_grads()
    found: list[str] = []
    with noted(found):
        ours = engine._grad_norm()
    return ours, float(engine.optimizer.get_grad_norm()), len(found)


@pytest.mark.parametrize("parallel", [{}, {"tensor": 2, "pipeline": 2, "tied": True}, {"precision": "bf16"}])
def test_the_norm_is_megatron_core_s_to_the_bit_and_waits_once(parallel: dict[str, Any]) -> None:
    for ours, theirs, waits in run_ranks(norms, 4, tiny_config("block", **parallel)):
        assert ours == theirs > 0 and waits == 1


def test_what_waits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The documents of a micro-batch counted between two forwards, say."""

    class Late:
        def __init__(self, segments: torch.Tensor):
            self._segments = segments

        def __getattr__(self, name: str) -> Any:
            return getattr(Documents.of(self._segments), name)

    monkeypatch.setattr(feed_module, "_documents", lambda segments, _device: Late(segments))
    (told,) = run_ranks(found_in, 1, [tiny_config("block, isolated documents")])[0]
    assert any("documents.py" in line for line in told)
