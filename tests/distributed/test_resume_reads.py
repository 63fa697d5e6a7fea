"""What a resume reads and holds: every data rank its own part of the files, and nothing of it twice."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from megatron.core import parallel_state
from torch import Tensor

from attnres_train.checkpoint import read_sums
from attnres_train.checkpoint.choose import choose_checkpoint
from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.checkpoint.load import load_checkpoint
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.checkpoint.pieces import PieceFiles
from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.checkpoint.whole import Damaged
from attnres_train.config.run_config import RunConfig
from attnres_train.engine.sharded import ShardedState
from attnres_train.parallel.grid import build_grid
from attnres_train.progress import TrainState
from attnres_train.setup import Setup
from attnres_train.trainer.build import build_parts
from tests.bench.peak import peak_bytes
from tests.distributed.ranks import run_ranks
from tests.distributed.test_checkpoints import save_whole
from tests.distributed.tiny import tiny_config

WIDTH, ENTRIES = 256, 2000


def wide(**parallel: Any) -> RunConfig:
    """Large enough that what describes a tensor is small beside it."""
    base = tiny_config("block", **parallel)
    return replace(base, model=replace(base.model, hidden_size=WIDTH, ffn_hidden_size=2 * WIDTH))


def saved(config: RunConfig, folder: Path) -> None:
    grid = build_grid(config.parallel, seed=1)
    engine = build_parts(Setup.of(config, grid.world_size, ENTRIES), grid).engine
    save_whole(CheckpointSave.start(folder, engine, grid, TrainState(step=1), RunIdentity((4,), {}, {})))


@dataclass(frozen=True)
class Reading:
    """Of one rank."""

    bytes: int
    opened: Counter[str]
    """By file."""
    extra_bytes: int
    """The most memory of tensors at once, beside those of the model and its optimizer."""
    owned_bytes: int
    """Of state that the rank updates."""


def bytes_read() -> int:
    """By this process until now, as the system counts what it asks of files."""
    (line,) = [text for text in Path("/proc/self/io").read_text().splitlines() if text.startswith("rchar")]
    return int(line.split()[1])


def read_by_a_resume(config: RunConfig, folder: Path, weights_only: bool = False) -> Reading:
    grid = build_grid(config.parallel, seed=1)
    engine = build_parts(Setup.of(config, grid.world_size, ENTRIES), grid).engine
    assert isinstance(engine, ShardedState)
    for p in engine.parameters():
        engine.shard(p)  # makes the moments, which are the optimizer's
    owned = sum(part.tensor.nbytes for part in engine.held())
    opened, read = Counter[str](), 0
    restored, began = engine.restored, 0

    def opens(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(str(folder)):
            opened[Path(arguments[0]).name] += 1

    def after_reading(updates: int) -> None:
        nonlocal read
        read = bytes_read() - began
        restored(updates)

    engine.restored = after_reading  # type: ignore[method-assign]
    before = [value for value in gc.get_objects() if isinstance(value, Tensor)]
    sys.addaudithook(opens)
    began = bytes_read()
    choice = choose_checkpoint("must", folder, grid, damaged={})
    assert choice is not None
    peak = peak_bytes(
        lambda: load_checkpoint(choice.folder, choice.manifest, engine, grid, {}, {}, (), weights_only), before
    )
    parallel_state.destroy_model_parallel()
    return Reading(read, opened, peak - peak_bytes(lambda: None, before), owned)


READERS: dict[str, tuple[int, dict[str, Any]]] = {
    "data 4": (4, {"precision": "bf16"}),
    "pipeline 3 x data 2, tied": (6, {"pipeline": 3, "tied": True}),
    "tensor 2 x data 2": (4, {"tensor": 2}),
    "ZeRO-3, data 4": (4, {"zero": {"stage": 3}}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two runs: of a model whose tables are two, and of one whose table is both."""
    folder = tmp_path_factory.mktemp("runs")
    for run, tied in (("untied", False), ("tied", True)):
        run_ranks(saved, 4, wide(pipeline=2, tied=tied), folder / run)
    return folder


def test_weights_alone_are_read_once_and_so_is_what_is_left_of_their_files(folder: Path) -> None:
    """Checksums are of files: the moments are summed, dealt out to the ranks."""
    manifest = read_manifest(checkpoints_folder(folder / "untied") / checkpoint_name(1))
    found = run_ranks(read_by_a_resume, 4, wide(tensor=2), folder / "untied", True)
    together = sum(reading.bytes for reading in found)
    assert together < 1.1 * manifest.bytes
    assert max(reading.bytes for reading in found) < together / 4 + 2 * read_sums._BLOCK_BYTES


@pytest.mark.parametrize("name", READERS)
def test_all_ranks_read_the_checkpoint_once_and_hold_nothing_of_it_beside_their_state(name: str, folder: Path) -> None:
    ranks, parallel = READERS[name]
    folder /= "tied" if parallel.get("tied") else "untied"
    manifest = read_manifest(checkpoints_folder(folder) / checkpoint_name(1))
    state = sum(record.bytes for file, record in manifest.files.items() if file.endswith(".distcp"))
    found = run_ranks(read_by_a_resume, ranks, wide(**parallel), folder)
    together = sum(reading.bytes for reading in found)
    assert state * 0.9 < together < 1.1 * manifest.bytes
    for reading in found:
        assert reading.bytes < 1.1 * reading.owned_bytes + 100_000, "more than its own part"
        largest = 4 * WIDTH * (ENTRIES if parallel.get("tied") else WIDTH)
        assert reading.extra_bytes <= 1.1 * largest, "more was held beside the state than one tensor"
        state_files = {count for name, count in reading.opened.items() if name.endswith(".distcp")}
        assert state_files == {1}, "a file was opened twice"
        assert reading.opened.keys() <= {*manifest.files, "manifest.json", "latest"}
    assert len({file for reading in found for file in reading.opened if file.endswith(".distcp")}) == 4


def refused_with_a_bad_disk(config: RunConfig, folder: Path) -> str:
    grid = build_grid(config.parallel, seed=1)
    engine = build_parts(Setup.of(config, grid.world_size, ENTRIES), grid).engine
    if grid.rank == 2:

        def fail(_self: PieceFiles, name: str, *_: Any) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

        PieceFiles.read = fail  # type: ignore[method-assign]
    checkpoint = checkpoints_folder(folder) / checkpoint_name(1)
    with pytest.raises(Damaged) as refusal:
        load_checkpoint(checkpoint, read_manifest(checkpoint), engine, grid, {}, {})
    return str(refusal.value)


def test_what_one_rank_cannot_read_is_told_on_all_and_nobody_waits(folder: Path) -> None:
    told = run_ranks(refused_with_a_bad_disk, 4, wide(tensor=2), folder / "untied")
    assert len(set(told)) == 1 and ".distcp cannot be read: rank 2: Input/output error" in told[0]
