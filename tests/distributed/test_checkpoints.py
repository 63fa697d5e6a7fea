"""A run that is saved and continued elsewhere goes on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core import parallel_state

from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.checkpoint.load import load_checkpoint
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Refused
from attnres_train.parallel.grid import build_grid
from attnres_train.progress import TrainState
from tests.distributed.ranks import run_ranks
from tests.distributed.state import export_state
from tests.distributed.tiny import tiny_config
from tests.distributed.training import build_tiny, step_tiny, whole_tensors

FINGERPRINTS = {"tokenizer": "a" * 64}
SETTINGS = {"model.num_attention_heads": 4, "model.init_std": 0.1, "optimizer.learning_rate": 1e-3}


def run_steps(
    config: RunConfig, first: int, last: int, folder: Path, save: bool
) -> tuple[list[float], list[float], dict[str, dict[str, torch.Tensor]]]:
    """Steps `first` to `last` (counted from 0), continued from the checkpoint of step `first` unless it is 0."""
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    if first:
        saved = checkpoints_folder(folder) / checkpoint_name(first)
        state, _ = load_checkpoint(saved, read_manifest(saved), parts.engine, grid, FINGERPRINTS, SETTINGS)
        assert state == TrainState(step=first, samples=8 * first, tokens=first, skipped_steps=1)
        assert parts.engine.updates == first
    losses, norms = [], []
    for step in range(first, last):
        loss, norm, _ = step_tiny(parts, config, grid, step)
        losses.append(loss)
        norms.append(norm)
    if save:
        identity = RunIdentity(parts.pipeline.setup.layers_per_stage, FINGERPRINTS, SETTINGS)
        state = TrainState(step=last, samples=8 * last, tokens=last, skipped_steps=1)
        save_whole(CheckpointSave.start(folder, parts.engine, grid, state, identity))
    states = export_state(parts.engine)
    kinds = ("master", "first_moment", "second_moment")
    tensors = {
        kind: whole_tensors(parts.engine.parameters(), {n: getattr(s, kind) for n, s in states.items()}, grid)
        for kind in kinds
    }
    return losses, norms, tensors


def save_whole(save: CheckpointSave) -> Path:
    save.wait()
    folder = save.publish()
    save.retire(keep=2)
    return folder


def first_rank(ranks: int, config: RunConfig, first: int, last: int, folder: Path, save: bool = False) -> Any:
    return run_ranks(run_steps, ranks, config, first, last, folder, save)[0]


HALF = 4


@pytest.mark.parametrize(
    ("ranks", "parallel"),
    [
        (1, {}),
        (2, {"pipeline": 2, "virtual": 2, "tied": True}),
        (4, {"tensor": 2, "precision": "bf16"}),
        (6, {"pipeline": 3}),
    ],
    ids=["one process", "pipeline 2 x virtual 2, tied", "tensor 2 x data 2, bf16", "pipeline 3 x data 2"],
)
def test_a_run_equals_its_half_and_a_new_process_and_its_other_half(
    ranks: int, parallel: dict[str, Any], tmp_path: Path
) -> None:
    """On grids of which no two ranks have the same place in each of their groups."""
    config = tiny_config("block", **parallel)
    losses, norms, tensors = first_rank(ranks, config, 0, 2 * HALF, tmp_path)
    first_losses, first_norms, _ = first_rank(ranks, config, 0, HALF, tmp_path, save=True)
    later_losses, later_norms, later_tensors = first_rank(ranks, config, HALF, 2 * HALF, tmp_path)
    assert first_losses + later_losses == losses
    assert first_norms + later_norms == norms
    for kind, by_name in tensors.items():
        for name, tensor in by_name.items():
            assert later_tensors[kind][name].equal(tensor), f"{kind} of {name}"


LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one process": (1, {}),
    "data 2": (2, {}),
    "tensor 2": (2, {"tensor": 2}),
    "pipeline 2": (2, {"pipeline": 2}),
    "pipeline 2 x virtual 2": (2, {"pipeline": 2, "virtual": 2}),
    "tensor 2 x pipeline 2": (4, {"tensor": 2, "pipeline": 2}),
}
SAVED_AT, MORE = 3, 2
FEW = ("data 2", "tensor 2 x pipeline 2")
"""That the quick test goes on with; the slow ones take all."""
CASES = ["block", pytest.param("standard", marks=pytest.mark.slow), pytest.param("full", marks=pytest.mark.slow)]


def save_and_go_on(config: RunConfig, folder: Path) -> list[float]:
    """Losses of the steps after the one that is saved."""
    run_steps(config, 0, SAVED_AT, folder, save=True)
    parallel_state.destroy_model_parallel()
    return run_steps(config, 0, SAVED_AT + MORE, folder, save=False)[0][SAVED_AT:]


def go_on_from_each(config: RunConfig, folders: list[Path]) -> list[list[float]]:
    found = []
    for folder in folders:
        found.append(run_steps(config, SAVED_AT, SAVED_AT + MORE, folder, save=False)[0])
        parallel_state.destroy_model_parallel()
    return found


@pytest.mark.parametrize("case", CASES)
def test_what_any_layout_saved_any_other_goes_on_with(case: str, tmp_path: Path) -> None:
    """Moments and the count of updates too: without them the next losses would differ."""
    unbroken = {
        name: run_ranks(save_and_go_on, ranks, tiny_config(case, **parallel), tmp_path / name)[0]
        for name, (ranks, parallel) in LAYOUTS.items()
    }
    for name in LAYOUTS if case != "block" else FEW:
        ranks, parallel = LAYOUTS[name]
        config, folders = tiny_config(case, **parallel), [tmp_path / saved for saved in LAYOUTS]
        found = dict(zip(LAYOUTS, run_ranks(go_on_from_each, ranks, config, folders)[0], strict=True))
        assert found[name] == unbroken[name], f"{name}, from its own"
        for saved, losses in found.items():
            assert losses == pytest.approx(unbroken["one process"], rel=1e-5), f"{name}, from {saved}"


def test_another_model_is_refused_with_every_difference(tmp_path: Path) -> None:
    first_rank(1, tiny_config("block"), 0, 1, tmp_path, save=True)

    def load_wider() -> list[str]:
        config = tiny_config("standard", layers=5)
        grid = build_grid(config.parallel, seed=1)
        folder = checkpoints_folder(tmp_path) / checkpoint_name(1)
        engine = build_tiny(config, grid).engine
        # Twice the heads leave every shape as it was.
        settings = {**SETTINGS, "model.num_attention_heads": 8, "model.init_std": 0.2, "optimizer.learning_rate": 2e-3}
        with pytest.raises(Refused) as refusal:
            load_checkpoint(folder, read_manifest(folder), engine, grid, {"tokenizer": "b" * 64}, settings)
        return [str(problem) for problem in refusal.value.problems]

    told = "\n".join(run_ranks(load_wider, 1)[0])
    assert "head.depth.query: the checkpoint has it with shape (32,), the model lacks it" in told
    assert "layers.4.mlp.norm.weight: the model has it with shape (32,), the checkpoint lacks it" in told
    assert told.startswith("step-00000001: model.num_attention_heads") and told.count("\n") < 40, "the cause first"
    assert "tokenizer: was trained with tokenizer aaaaaaaaaaaa, this run has bbbbbbbbbbbb" in told
    assert "step-00000001: model.num_attention_heads: was 4 in the checkpoint, is 8: another model" in told
    assert "init_std" not in told and "learning_rate" not in told


def test_a_damaged_shard_is_refused_in_words(tmp_path: Path) -> None:
    first_rank(1, tiny_config("block"), 0, 1, tmp_path, save=True)
    folder = checkpoints_folder(tmp_path) / checkpoint_name(1)
    shard = max(folder.glob("*.distcp"), key=lambda path: path.stat().st_size)
    shard.write_bytes(b"\xff" * shard.stat().st_size)

    def load_damaged() -> str:
        config = tiny_config("block")
        grid = build_grid(config.parallel, seed=1)
        engine = build_tiny(config, grid).engine
        with pytest.raises(Refused) as refusal:
            load_checkpoint(folder, read_manifest(folder), engine, grid, FINGERPRINTS, SETTINGS)
        return str(refusal.value)

    told = run_ranks(load_damaged, 1)[0]
    assert f"step-00000001: {shard.name} has checksum " in told and "use another checkpoint" in told


def test_a_rank_that_cannot_write_stops_all_and_publishes_nothing(tmp_path: Path) -> None:
    def save_with_a_failing_rank() -> str:
        config = tiny_config("block", pipeline=2)
        grid = build_grid(config.parallel, seed=1)
        parts = build_tiny(config, grid)
        if grid.rank == 1:
            import attnres_train.checkpoint.save as module

            def fail(*_: Any) -> None:
                raise OSError(28, "No space left on device")

            module.save_random_state = fail
        identity = RunIdentity((2, 2), {}, {})
        with pytest.raises(RuntimeError) as failure:
            save_whole(CheckpointSave.start(tmp_path, parts.engine, grid, TrainState(), identity))
        return str(failure.value)

    for told in run_ranks(save_with_a_failing_rank, 2):
        assert "rank 1" in told and "No space left on device" in told
    assert not any(path.name.startswith("step-") for path in checkpoints_folder(tmp_path).iterdir())
