"""A buffer that a branch describes is saved and resumed bit for bit: nothing else has to know of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.checkpoint.load import load_checkpoint
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.checkpoint.reader import CheckpointReader
from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.config.run_config import RunConfig
from attnres_train.engine.deepspeed_patches import import_deepspeed
from attnres_train.engine.interface import Engine
from attnres_train.model import describe, layer, size
from attnres_train.model.branches.attention import Attention
from attnres_train.model.branches.branch import Branch
from attnres_train.model.branches.mlp import Mlp
from attnres_train.model.config import ModelConfig
from attnres_train.model.parameters import logical_parameters
from attnres_train.model.sharding import Sharding
from attnres_train.model.tensors import TensorSpec
from attnres_train.parallel.grid import Grid, build_grid
from attnres_train.plan.checkpoint import plan_checkpoint
from attnres_train.progress import TrainState
from attnres_train.setup import Setup
from tests.distributed.ranks import run_ranks
from tests.distributed.state import export_state
from tests.distributed.test_checkpoints import save_whole
from tests.distributed.tiny import VOCABULARY, tiny_config
from tests.distributed.training import build_tiny, step_tiny, whole_tensors

EXPERTS, ROWS, STEPS = 6, 48, 2


class Counting(Mlp):
    """With the bias of a router, which every forward moves, and a table that tensor ranks cut."""

    def tensors(self) -> tuple[TensorSpec, ...]:
        bias = TensorSpec("bias", Sharding((EXPERTS,)), False, value=0.5, buffer=True)
        return (bias, *super().tensors(), TensorSpec("table", Sharding((ROWS, 3), axis=0), False, std=1.0, buffer=True))

    def build(self, config: Any, layer: int, groups: Any) -> nn.Module:
        module = super().build(config, layer, groups)
        module.register_buffer("bias", torch.zeros(EXPERTS))
        module.register_buffer("table", torch.zeros(ROWS // groups.tp.size(), 3))
        module.register_buffer("scratch", torch.zeros(2), persistent=False)
        module.register_forward_pre_hook(_moved)
        return module


def _moved(module: Any, _inputs: Any) -> None:
    module.bias.add_(torch.arange(EXPERTS) * 0.37)
    module.table.mul_(1.0009765625)


def with_buffers(model: ModelConfig, _layer: int) -> tuple[Branch, Branch]:
    return Attention(model), Counting(model)


def in_this_process() -> None:
    """Ranks are forked: nothing of it is left behind."""
    for module in (describe, layer, size):
        module.branches_of = with_buffers  # type: ignore[attr-defined]
    describe.describe.cache_clear()


def whole_state(engine: Engine, grid: Grid) -> dict[str, Tensor]:
    """Weights, moments and buffers, whole, on rank 0; no two ranks differ in what both hold."""
    buffers = {p.name: p.parameter.clone() for p in engine.parameters() if p.spec.buffer}
    found = {f"buffer/{name}": t for name, t in whole_tensors(engine.parameters(), buffers, grid).items()}
    for kind in ("master", "first_moment", "second_moment"):
        mine = {name: getattr(state, kind) for name, state in export_state(engine).items()}
        found |= {f"{kind}/{name}": t for name, t in whole_tensors(engine.parameters(), mine, grid).items()}
    return found


def save(config: RunConfig, folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    """The state that is saved, the one a step later, and the bytes of state that the plan foretells."""
    in_this_process()
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    for step in range(STEPS):
        step_tiny(parts, config, grid, step)
    save_whole(CheckpointSave.start(folder, parts.engine, grid, TrainState(step=STEPS), RunIdentity((4,), {}, {})))
    state = whole_state(parts.engine, grid)
    step_tiny(parts, config, grid, STEPS)
    planned = plan_checkpoint(Setup.of(config, grid.world_size, VOCABULARY)).state_bytes
    return state, whole_state(parts.engine, grid), planned


def resume(config: RunConfig, folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    in_this_process()
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    checkpoint = checkpoints_folder(folder) / checkpoint_name(STEPS)
    load_checkpoint(checkpoint, read_manifest(checkpoint), parts.engine, grid, {}, {})
    state = whole_state(parts.engine, grid)
    step_tiny(parts, config, grid, STEPS)
    return state, whole_state(parts.engine, grid)


LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tensor 2 x data 2": (4, {"tensor": 2}),
    "pipeline 3 x data 2": (6, {"pipeline": 3}),
    "ZeRO-3, data 2": (2, {"zero": {"stage": 3}}),
}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(tensor.equal(other[key]) for key, tensor in one.items())


def test_a_described_buffer_is_saved_and_resumed_in_any_layout(tmp_path: Path) -> None:
    import_deepspeed()
    ranks, parallel = LAYOUTS["tensor 2 x data 2"]
    state, later, planned = run_ranks(save, ranks, tiny_config("block", **parallel), tmp_path)[0]
    buffers = {key: tensor for key, tensor in state.items() if key.startswith("buffer/")}
    names = {f"buffer/layers.{n}.mlp.branch.{name}" for n in range(4) for name in ("bias", "table")}
    assert buffers.keys() == names
    # Two micro-batches a step on each data rank.
    moved = torch.full((EXPERTS,), 0.5)
    for _ in range(2 * STEPS):
        moved += torch.arange(EXPERTS) * 0.37
    assert buffers["buffer/layers.3.mlp.branch.bias"].equal(moved)
    tables = [buffers[f"buffer/layers.{n}.mlp.branch.table"] for n in range(4)]
    assert all(table.shape == (ROWS, 3) and table.unique().numel() > ROWS for table in tables)
    reader = CheckpointReader.open(checkpoints_folder(tmp_path) / checkpoint_name(STEPS))
    stored = {f"{part.kind}/{part.name}": part.tensor for part in reader.parts()}
    assert {key for key in stored if "table" in key or "bias" in key} == names
    assert all(stored[key].equal(buffers[key]) for key in names)
    assert planned == sum(tensor.nbytes for tensor in stored.values())
    for name, (ranks, parallel) in LAYOUTS.items():
        found, next_one = run_ranks(resume, ranks, tiny_config("block", **parallel), tmp_path)[0]
        assert same(found, state), name
        assert name != "tensor 2 x data 2" or same(next_one, later)


def test_a_buffer_that_nobody_describes_is_not_forgotten_in_silence() -> None:
    def build() -> str:
        config = tiny_config("block")
        parts = build_tiny(config, build_grid(config.parallel, seed=1))
        stage = parts.stages[0]
        stage.layers["2"].register_buffer("seen", torch.zeros(3))
        with pytest.raises(AssertionError) as failure:
            list(logical_parameters(stage))
        return str(failure.value)

    assert "layers.2.seen" in run_ranks(build, 1)[0]
