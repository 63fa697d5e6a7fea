"""Saves of a grid on which pipeline rank, data rank and global rank are three numbers: every rank's own, by name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from attnres_train.checkpoint.choose import choose_checkpoint
from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.engine.interface import StatePart
from attnres_train.parallel.grid import build_grid
from attnres_train.progress import TrainState
from attnres_train.trainer.resume import resume
from tests.distributed.loop import SyntheticLoader
from tests.distributed.ranks import run_ranks
from tests.distributed.state import export_state
from tests.distributed.tiny import MICRO_BATCH, MICRO_BATCHES, tiny_config
from tests.distributed.training import build_tiny, step_tiny

STEP, SKIPPED = 5, 3


def save_draw_and_go_back(folder: Path) -> dict[str, Any]:
    config = tiny_config("block", pipeline=3)
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    assert len(SyntheticLoader(grid, MICRO_BATCHES * MICRO_BATCH).step(0)) == MICRO_BATCHES // grid.data
    for step in range(STEP - SKIPPED):
        step_tiny(parts, config, grid, step)
    torch.manual_seed(1000 + grid.rank)
    with get_cuda_rng_tracker().fork():
        tracked = torch.rand(4)
    settings = {
        "training.steps": 20,
        "optimizer.learning_rate": 1e-3,
        "schedule.kind": "constant",
        "training.global_batch_size": 8,
    }
    identity = RunIdentity(parts.pipeline.setup.wire.layers_per_stage, {}, settings)
    state = TrainState(step=STEP, samples=8 * STEP, tokens=77, skipped_steps=SKIPPED)
    share = {part.logical.name for part in parts.engine.share()}
    everybody: list[Any] = [None] * grid.world_size
    dist.all_gather_object(everybody, list(share), group=grid.control)
    save = CheckpointSave.start(folder, parts.engine, grid, state, identity)
    drawn = torch.rand(4)
    save.wait()
    save.publish()
    save.retire(keep=None)

    other = build_tiny(config, grid)
    choice = choose_checkpoint("auto", folder, grid)
    assert choice is not None
    later = RunIdentity(identity.layers_per_stage, {}, {**settings, "training.steps": 40, "schedule.kind": "cosine"})
    told: list[str] = []
    import attnres_train.trainer.resume as module

    info = module.log.info
    module.log.info = told.append  # type: ignore[method-assign, assignment]
    try:
        resumed = resume(choice, other.engine, grid, later, (), folder)
    finally:
        module.log.info = info  # type: ignore[method-assign]
    again = torch.rand(4)
    mine, found = export_state(parts.engine), export_state(other.engine)
    same = all(
        getattr(mine[name], kind).equal(getattr(found[name], kind))
        for name in mine
        for kind in ("master", "first_moment", "second_moment")
    )

    # Now with a moment that is not finite, on the last rank alone.
    if grid.rank == grid.world_size - 1:
        spoil(parts.engine)
    refused = ""
    try:
        bad = CheckpointSave.start(folder, parts.engine, grid, TrainState(step=STEP + 1), identity)
        bad.wait()
        bad.publish()
    except RuntimeError as error:
        refused = str(error)
    return {
        "streams": (drawn, again, tracked),
        "state": resumed,
        "updates": other.engine.updates,
        "same": same,
        "told": told,
        "shares": everybody,
        "refused": refused,
        "place": (grid.rank, grid.pipeline_rank, grid.data_rank),
    }


def spoil(engine: Any) -> None:
    """Have what this rank saves of the second moments hold a NaN."""
    share = engine.share

    def spoilt() -> Iterator[StatePart]:
        for part in share():
            if part.kind.stored == "second_moment":
                part.tensor.view(-1)[0] = math.nan
            yield part

    engine.share = spoilt


def test_every_rank_writes_and_reads_its_own(tmp_path: Path) -> None:
    found = run_ranks(save_draw_and_go_back, 6, tmp_path)
    folder = checkpoints_folder(tmp_path) / checkpoint_name(STEP)
    manifest = read_manifest(folder)
    assert manifest.grid == (1, 3, 1, 2, 0)
    assert manifest.optimizer_updates == STEP - SKIPPED
    assert {name for name in manifest.files if name.startswith("random-")} == {f"random-{r:05d}.pt" for r in range(6)}
    assert len([name for name in manifest.files if name.endswith(".distcp")]) == 6
    draws, tracked = [], []
    for rank in found:
        drawn, again, of_tracker = rank["streams"]
        assert drawn.equal(again), f"{rank['place']} goes on with the streams of another rank"
        draws.append(tuple(drawn.tolist()))
        tracked.append(tuple(of_tracker.tolist()))
        assert rank["same"], f"{rank['place']}: weights or moments"
        assert rank["updates"] == STEP - SKIPPED
        assert rank["state"] == TrainState(step=STEP, samples=8 * STEP, tokens=77, skipped_steps=SKIPPED)
        (line,) = [line for line in rank["told"] if "learning rate of step" in line]
        assert f"learning rate of step {STEP + 1}: would have been 0.001" in line
        assert "not finite" in rank["refused"] and "rank 5 " in rank["refused"]
    assert len(set(draws)) == len(set(tracked)) == 6, "two ranks draw alike"
    names = [name for share in found[0]["shares"] for name in share]
    assert len(names) == len(set(names)), "two ranks save one tensor"
    assert all(found[0]["shares"]), "a rank has nothing to write"
