"""What the plan says before the launch against what ranks then hold, send and save, layout by layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import config_values
from attnres_train.parallel.grid import build_grid
from attnres_train.parallel.lane import Transfer
from attnres_train.parallel.pipeline import Ran
from attnres_train.parallel.transport import Traffic
from attnres_train.plan import Plan, plan
from attnres_train.progress import TrainState
from attnres_train.setup import Setup
from attnres_train.trainer.build import Parts, build_parts
from tests.bench.peak import peak_bytes
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import VOCABULARY, step_batches, tiny_config

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank, layers made again": (1, {"recompute": "layer", "precision": "bf16"}),
    "tensor, sequence": (2, {"tensor": 2, "sequence": True, "precision": "bf16"}),
    "data, standard residual": (2, {"case": "standard", "qk_norm": False, "precision": "bf16"}),
    "pipeline, tied, 7 layers": (2, {"pipeline": 2, "tied": True, "layers": 7}),
    "interleaved, full": (2, {"pipeline": 2, "virtual": 2, "case": "full", "layers": 6, "precision": "bf16"}),
    "pipeline and data": (4, {"pipeline": 2, "case": "block of 2", "precision": "bf16"}),
}
"""Ranks, and the settings of `tiny_config`; what is left of the ranks is data-parallel."""


@dataclass(frozen=True)
class Measured:
    """One rank in its second step, in bytes. Its kinds are those of `MemoryPlan`."""

    parameters: int
    weights: int
    gradients: int
    masters: int
    moments: int
    peak: int
    forward_bytes: int
    backward_bytes: int


def config_of(settings: dict[str, Any]) -> RunConfig:
    """Wide enough that vectors are not most of it."""
    config = tiny_config(**settings)
    return replace(config, model=replace(config.model, hidden_size=64, ffn_hidden_size=176))


def measured(config: RunConfig, folder: str) -> Measured:
    grid = build_grid(config.parallel, seed=1)
    setup = Setup.of(config, grid.world_size, VOCABULARY)
    parts = build_parts(setup, grid)
    batches = step_batches(0, grid.data_rank, grid.data)

    def step() -> None:
        parts.engine.zero_grad()
        parts.pipeline.run(parts.engine.chunks, batches)
        parts.engine.step(1e-3)

    step()  # makes the moments
    engine: Any = parts.engine
    pass_peak, traffic = _peak_of_a_pass(parts, batches)
    peak = max(pass_peak, peak_bytes(lambda: engine.step(1e-3), _standing(parts)))
    save = CheckpointSave.start(
        Path(folder),
        parts.engine,
        grid,
        TrainState(),
        RunIdentity(setup.layers_per_stage, {}, config_values(config, {})),
    )
    save.wait()
    save.publish()
    save.retire(None)
    parameters = [p for chunk in engine.chunks for p in chunk.parameters()]
    slots = engine.optimizer.chained_optimizers[0].optimizer.state.values()
    return Measured(
        parameters=sum(p.numel() for p in parameters),
        weights=_bytes(parameters),
        gradients=_bytes([p.main_grad for p in parameters]),
        masters=_bytes([main for weight, main in engine._mains.items() if weight.dtype != torch.float32]),
        moments=_bytes([slot[kind] for slot in slots for kind in ("exp_avg", "exp_avg_sq")]),
        peak=peak,
        forward_bytes=traffic.forward_bytes,
        backward_bytes=traffic.backward_bytes,
    )


def _peak_of_a_pass(parts: Parts, batches: list[Any]) -> tuple[int, Traffic]:
    """Of forward and backward, and what they sent. Not of reducing: gloo copies all gradients for it, NCCL does not."""
    config = parts.pipeline.communicator.config
    reduce, config.finalize_model_grads_func = config.finalize_model_grads_func, None
    try:
        ran: list[Ran] = []
        peak = peak_bytes(lambda: ran.append(parts.pipeline.run(parts.engine.chunks, batches)), _standing(parts))
        return peak, ran[0].traffic
    finally:
        config.finalize_model_grads_func = reduce


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _standing(parts: Parts) -> list[Tensor]:
    """Every tensor that stands between two steps."""
    engine: Any = parts.engine
    tensors = [p for chunk in engine.chunks for p in chunk.parameters()]
    tensors += [buffer.grad_data for chunk in engine.chunks for buffer in chunk.buffers]
    state = engine.optimizer.chained_optimizers[0].optimizer.state
    slots = [value for slot in state.values() for value in slot.values() if isinstance(value, Tensor)]
    return [*tensors, *engine._mains.values(), *slots]


@cache
def outcome(name: str) -> tuple[Plan, list[Measured], int]:
    """The plan, what the ranks found, and the bytes of the checkpoint's folder."""
    ranks, settings = LAYOUTS[name]
    config = config_of(settings)
    with TemporaryDirectory() as folder:
        found = run_ranks(measured, ranks, config, folder)
        (saved,) = (path for path in Path(folder, "checkpoints").iterdir() if path.is_dir() and not path.is_symlink())
        size = sum(path.stat().st_size for path in saved.iterdir())
    return plan(config, ranks, VOCABULARY), found, size


def on_pipeline_rank(name: str, rank: int) -> list[Measured]:
    """The ranks at one position of the pipeline, which is the outermost degree."""
    planned, found, _ = outcome(name)
    each = len(found) // planned.setup.wire.pipeline
    return found[rank * each : (rank + 1) * each]


@pytest.mark.parametrize("name", LAYOUTS)
def test_parameters_are_exact_on_every_rank(name: str) -> None:
    planned, _, _ = outcome(name)
    for rank, parameters in enumerate(planned.parameters_per_rank):
        assert {found.parameters for found in on_pipeline_rank(name, rank)} == {parameters}


@pytest.mark.parametrize("name", LAYOUTS)
def test_bytes_on_the_wire_are_exact(name: str) -> None:
    planned, found, _ = outcome(name)
    assert sum(rank.forward_bytes for rank in found) == planned.wire.step_forward_bytes
    assert sum(rank.backward_bytes for rank in found) == planned.wire.step_backward_bytes


@pytest.mark.parametrize("kind", ["weights", "gradients", "masters", "moments"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_state_of_the_fullest_rank_is_exact(name: str, kind: str) -> None:
    memory = outcome(name)[0].memory
    assert max(getattr(found, kind) for found in on_pipeline_rank(name, memory.rank)) == getattr(memory, kind)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_peak_is_within_a_tenth_and_on_the_rank_that_the_plan_names(name: str) -> None:
    planned, found, _ = outcome(name)
    highest = max(rank.peak for rank in found)
    assert max(rank.peak for rank in on_pipeline_rank(name, planned.memory.rank)) == highest
    assert planned.memory.total == pytest.approx(highest, rel=0.1)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_save_is_within_a_fiftieth(name: str) -> None:
    planned, _, size = outcome(name)
    assert planned.checkpoint.total_bytes == pytest.approx(size, rel=0.02)


@pytest.mark.parametrize("name", [name for name, (_, settings) in LAYOUTS.items() if "pipeline" in settings])
def test_the_peak_stays_where_sends_are_let_go_only_when_they_must(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that runs ahead of its GPU never finds one through. It need not: by `wait` NCCL's stream and the one that
    computes are in order, so that what is given back may be written as soon as it is waited for."""
    planned, _, _ = outcome(name)
    monkeypatch.setattr(Transfer, "is_through", property(lambda _: False))
    ranks, settings = LAYOUTS[name]
    with TemporaryDirectory() as folder:
        found = run_ranks(measured, ranks, config_of(settings), folder)
    assert max(rank.peak for rank in found) <= 1.1 * planned.memory.total
