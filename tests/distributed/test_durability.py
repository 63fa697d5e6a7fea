"""A checkpoint that has its name survives a power cut: what is flushed, in which order, and what is read back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, model_parallel_cuda_manual_seed

from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.checkpoint.load import load_checkpoint
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.checkpoint.random_state import random_streams
from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.config.run_config import RunConfig
from attnres_train.engine.interface import StatePart
from attnres_train.parallel.grid import build_grid
from attnres_train.progress import TrainState
from tests.distributed.ranks import run_ranks
from tests.distributed.test_checkpoints import save_whole
from tests.distributed.tiny import tiny_config
from tests.distributed.training import build_tiny

IDENTITY = RunIdentity((4,), {}, {})


def events_of_a_save(config: RunConfig, folder: Path) -> list[tuple[str, str]]:
    """("flush" | "rename", path) in the order in which the system was asked for them."""
    grid = build_grid(config.parallel, seed=1)
    engine = build_tiny(config, grid).engine
    seen: list[tuple[str, str]] = []
    flush, rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        seen.append(("flush", os.readlink(f"/proc/self/fd/{descriptor}")))
        flush(descriptor)

    def renamed(source: Any, target: Any, **named: Any) -> None:
        seen.append(("rename", str(target)))
        rename(source, target, **named)

    os.fsync, os.rename = fsync, renamed  # type: ignore[assignment]
    try:
        save_whole(CheckpointSave.start(folder, engine, grid, TrainState(step=1), IDENTITY))
    finally:
        os.fsync, os.rename = flush, rename
    return seen


def test_every_file_is_on_disk_before_the_folder_and_the_folder_before_its_name(tmp_path: Path) -> None:
    (seen,) = run_ranks(events_of_a_save, 1, tiny_config("block"), tmp_path)
    published = checkpoints_folder(tmp_path) / checkpoint_name(1)
    (named,) = [place for place, event in enumerate(seen) if event == ("rename", str(published))]
    flushed = [Path(path) for kind, path in seen[:named] if kind == "flush"]
    partial = flushed[-1]
    assert partial.parent == published.parent and partial.name.startswith("."), "the folder last, after its manifest"
    assert flushed[-2] == partial / "manifest.json", "the manifest after what it vouches for"
    files = {path.name for path in published.iterdir()}
    written = {
        path.name.removesuffix(".tmp") for path in flushed[:-1]
    }  # torch renames its metadata when they are flushed
    assert written == files, "and every other file before it"
    assert ("flush", str(published.parent)) in seen[named:], "the name itself"


SPOILED = "layers.1.mlp.branch.linear_fc1.weight"


def failure_of_a_save(config: RunConfig, folder: Path, kind: str) -> str:
    """With one number of one part of one tensor's state below all bounds."""
    grid = build_grid(config.parallel, seed=1)
    engine = build_tiny(config, grid).engine
    share = engine.share

    def spoiled() -> Iterator[StatePart]:
        for part in share():
            if part.key == f"{kind}/{SPOILED}":
                part.tensor.view(-1)[3] = float("-inf")
            yield part

    engine.share = spoiled  # type: ignore[method-assign]
    save = CheckpointSave.start(folder, engine, grid, TrainState(step=1), IDENTITY)
    save.wait()
    with pytest.raises(RuntimeError) as failure:
        save.publish()
    return str(failure.value)


@pytest.mark.parametrize("kind", ["weight", "first_moment", "second_moment"])
def test_what_is_not_finite_is_not_saved_whichever_part_it_is(kind: str, tmp_path: Path) -> None:
    (told,) = run_ranks(failure_of_a_save, 1, tiny_config("block"), tmp_path, kind)
    assert f"{SPOILED} or its optimizer state is not finite" in told
    assert not [path for path in checkpoints_folder(tmp_path).iterdir() if path.name.startswith("step")]


def of_tensor_ranks() -> list[float]:
    """The next numbers of the stream that megatron-core keeps for what tensor ranks draw apart."""
    with get_cuda_rng_tracker().fork():
        return torch.rand(3).tolist()


def streams_after_a_resume(config: RunConfig, saved: Path, save: bool) -> tuple[list[float], list[float], bool]:
    """The next random numbers of this rank when it saves (or begins), and after it has loaded; whether megatron-core's
    own stream went on, too."""
    grid = build_grid(config.parallel, seed=1)
    engine = build_tiny(config, grid).engine
    torch.manual_seed(1000 + grid.rank)
    folder = checkpoints_folder(saved) / checkpoint_name(1)
    if save:
        save_whole(CheckpointSave.start(saved, engine, grid, TrainState(step=1), replace(IDENTITY)))
    known = random_streams()
    before, own = torch.rand(3).tolist(), of_tensor_ranks()
    model_parallel_cuda_manual_seed(99)
    torch.manual_seed(7)
    load_checkpoint(folder, read_manifest(folder), engine, grid, {}, {})
    assert known.keys() == random_streams().keys()
    after = torch.rand(3).tolist()
    return before, after, own == of_tensor_ranks()


def test_every_rank_goes_on_with_its_own_random_stream_and_another_grid_with_none(tmp_path: Path) -> None:
    found = run_ranks(streams_after_a_resume, 4, tiny_config("block", tensor=2), tmp_path, True)
    assert all(before == after and own for before, after, own in found)
    assert len({tuple(after) for _, after, _ in found}) == 4, "no two ranks have one stream"
    seven = torch.rand(3, generator=torch.Generator().manual_seed(7)).tolist()
    for _, after, own in run_ranks(streams_after_a_resume, 2, tiny_config("block", pipeline=2), tmp_path, False):
        assert after == seven and not own, "what it had before it loaded"
