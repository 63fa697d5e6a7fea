"""What the engine of DeepSpeed does beside training: skipping, exporting, going on from the other engine's files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core import parallel_state
from torch import Tensor

from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.checkpoint.load import load_checkpoint
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.engine.deepspeed_patches import import_deepspeed
from attnres_train.parallel.grid import build_grid
from attnres_train.setup import Setup
from attnres_train.trainer.build import build_parts
from tests.distributed.ranks import run_ranks
from tests.distributed.state import export_state
from tests.distributed.test_checkpoints import (
    FINGERPRINTS,
    MORE,
    SAVED_AT,
    SETTINGS,
    go_on_from_each,
    run_steps,
)
from tests.distributed.test_skipped_steps import config as skipping_config
from tests.distributed.test_skipped_steps import logged, state_checksums, train_with_bad_steps
from tests.distributed.tiny import VOCABULARY, deepspeed_engine, step_batches, tiny_config
from tests.distributed.training import build_tiny

ENGINES: dict[str, tuple[int, dict[str, Any]]] = {
    "megatron, data 2": (2, {}),
    "megatron, tensor 2 x pipeline 2": (4, {"tensor": 2, "pipeline": 2}),
    "ZeRO-1, pipeline 2 x virtual 2": (2, {"pipeline": 2, "virtual": 2, "zero": {"stage": 1}}),
    "ZeRO-2, data 2": (2, {"zero": {"stage": 2}}),
    "ZeRO-3, data 2": (2, {"zero": {"stage": 3}}),
    "ZeRO-3, tensor 2 x data 2": (4, {"tensor": 2, "zero": {"stage": 3}}),
}


@pytest.fixture(autouse=True)
def deepspeed() -> None:
    """Imports it once for all ranks, which are forked."""
    import_deepspeed()


def save(parallel: dict[str, Any], folder: Path) -> dict[str, dict[str, Tensor]]:
    return run_steps(tiny_config("block", tied=True, **parallel), 0, SAVED_AT, folder, save=True)[2]


def loaded_and_further(parallel: dict[str, Any], folders: list[Path]) -> list[tuple[dict[str, Any], list[float]]]:
    """Of every folder: what is there right after loading, and the losses of the next steps."""
    config = tiny_config("block", tied=True, **parallel)
    found = []
    for folder in folders:
        tensors = run_steps(config, SAVED_AT, SAVED_AT, folder, save=False)[2]
        parallel_state.destroy_model_parallel()
        found.append((tensors, go_on_from_each(config, [folder])[0]))
    return found


def assert_any_goes_on_from_any(engines: dict[str, tuple[int, dict[str, Any]]], folder: Path) -> None:
    """Masters and moments bit for bit, and the losses of the next steps.

    What megatron-core's engine saved and goes on with itself is test_checkpoints.py's.
    """
    config = tiny_config("block", tied=True)
    unbroken = run_ranks(run_steps, 1, config, 0, SAVED_AT + MORE, folder, False)[0][0][SAVED_AT:]
    saved = {name: run_ranks(save, ranks, grid, folder / name)[0] for name, (ranks, grid) in engines.items()}
    for name, (ranks, grid) in engines.items():
        folders = [folder / other for other, (_, its) in engines.items() if "zero" in grid or "zero" in its]
        found = run_ranks(loaded_and_further, ranks, grid, folders)[0]
        for source, (tensors, losses) in zip(folders, found, strict=True):
            assert losses == pytest.approx(unbroken, rel=1e-5), f"{name}, from {source.name}"
            for kind, by_name in saved[source.name].items():
                assert by_name.keys() == tensors[kind].keys()
                for parameter, tensor in by_name.items():
                    assert tensors[kind][parameter].equal(tensor), f"{name}, from {source.name}: {kind} {parameter}"


def test_either_engine_goes_on_from_what_the_other_saved(tmp_path: Path) -> None:
    assert_any_goes_on_from_any({name: ENGINES[name] for name in ("megatron, data 2", "ZeRO-3, data 2")}, tmp_path)


@pytest.mark.slow
def test_any_engine_and_layout_goes_on_from_any(tmp_path: Path) -> None:
    assert_any_goes_on_from_any(ENGINES, tmp_path)


def steps_counted(folder: Path, stage: int) -> list[float]:
    config = tiny_config("block", zero={"stage": stage})
    grid = build_grid(config.parallel, seed=1)
    engine: Any = build_tiny(config, grid).engine
    before = torch.get_rng_state()
    saved = checkpoints_folder(folder) / checkpoint_name(SAVED_AT)
    load_checkpoint(saved, read_manifest(saved), engine, grid, FINGERPRINTS, SETTINGS)
    torch.set_rng_state(before)
    return [float(slot["step"]) for slot in engine._deepspeed.optimizer.optimizer.state.values()]


def test_the_count_of_updates_is_the_savers(tmp_path: Path) -> None:
    run_ranks(run_steps, 1, tiny_config("block"), 0, SAVED_AT, tmp_path, True)
    for stage in (1, 3):
        (counts,) = run_ranks(steps_counted, 1, tmp_path, stage)
        assert counts and set(counts) == {float(SAVED_AT)}


@pytest.mark.parametrize(
    "zero",
    [
        {"stage": 1},
        pytest.param({"stage": 3}, marks=pytest.mark.slow),
        pytest.param({"stage": 2, "offload_optimizer": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_bad_step_changes_nothing_on_any_rank_and_the_next_is_as_if_it_had_not_been(
    zero: dict[str, Any], tmp_path: Path
) -> None:
    config = replace(skipping_config(), engine=deepspeed_engine(**zero))
    told, other = run_ranks(train_with_bad_steps, 2, config, tmp_path, range(5, 6))
    steps = logged(tmp_path)
    assert [steps[step]["optim/skipped_steps"] for step in (4, 5, 8)] == [0, 1, 1]
    line = next(line for line in told if "gradient norm" in line)
    assert line == "step 5: gradient norm nan, skipped; rank 1: samples sample-38, sample-39"
    assert line in other
    assert state_checksums(tmp_path, 5) == state_checksums(tmp_path, 4) != state_checksums(tmp_path, 6)
    reference = tmp_path / "megatron"
    run_ranks(train_with_bad_steps, 2, skipping_config(), reference, range(5, 6))
    for step in (6, 7, 8):
        assert steps[step]["loss/train"] == pytest.approx(logged(reference)[step]["loss/train"], rel=1e-5)


def step_without_tokens(stage: int) -> tuple[dict[str, tuple[Tensor, Tensor]], float, bool]:
    config = tiny_config("block", zero={"stage": stage})
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    engine = parts.engine
    before = {name: state.master.clone() for name, state in export_state(engine).items()}
    engine.zero_grad()
    batches = step_batches(0, grid.data_rank, grid.data)
    masked = [replace(batch, loss_mask_BT=torch.zeros_like(batch.loss_mask_BT)) for batch in batches]
    parts.pipeline.run(engine.chunks, masked)
    update = engine.step(0.01)
    after = {name: state.master for name, state in export_state(engine).items()}
    return {name: (before[name], after[name]) for name in before}, update.grad_norm, update.applied


@pytest.mark.parametrize("stage", [1, 3])
def test_without_gradients_matrices_decay_and_vectors_stay(stage: int) -> None:
    decay = 1 - 0.01 * tiny_config().optimizer.weight_decay
    for weights, grad_norm, applied in run_ranks(step_without_tokens, 2, stage):
        assert applied and grad_norm == 0.0
        for name, (before, after) in weights.items():
            expected = before if before.ndim == 1 else before * decay
            assert torch.allclose(after, expected, rtol=1e-6, atol=0), name


def run_with_zero_3_and_look() -> list[int]:
    config = tiny_config("block", tied=True, zero={"stage": 3})
    grid = build_grid(config.parallel, seed=1)
    parts = build_parts(Setup.of(config, grid.world_size, VOCABULARY), grid)  # as a run does that loads nothing
    parts.engine.zero_grad()
    parts.pipeline.run(parts.engine.chunks, step_batches(0, grid.data_rank, grid.data))
    parts.engine.step(0.01)
    return [p.parameter.numel() for p in parts.engine.parameters() if p.parameter.ds_numel > 32]


def test_zero_3_leaves_no_matrix_whole_between_steps() -> None:
    for sizes in run_ranks(run_with_zero_3_and_look, 2):
        assert len(sizes) > 10 and set(sizes) == {0}
