"""What makes a save survive a power cut and a bad disk, observed: flushes before names, and bytes before deletions."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
from megatron.core import parallel_state

from attnres_train.checkpoint.config import CheckpointConfig
from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.checkpoint.manifest import FILE_NAME, read_manifest
from attnres_train.checkpoint.random_state import random_state_file
from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.checkpoint.space import check_space
from attnres_train.config.run_config import RunConfig
from attnres_train.errors import ExitCode, Refused
from attnres_train.observe.config import ObserveConfig
from attnres_train.observe.settings_history import read_history
from attnres_train.parallel.grid import build_grid
from attnres_train.progress import TrainState
from attnres_train.trainer.signals import StopRequest
from tests.distributed.loop import SyntheticValidation, run_loop
from tests.distributed.ranks import run_ranks
from tests.distributed.state import export_state
from tests.distributed.tiny import tiny_config
from tests.distributed.training import build_tiny


class Event(NamedTuple):
    """A file or folder that reached the disk, or got a name; `seconds` are on one clock for all processes."""

    kind: str
    name: str
    seconds: float


@contextmanager
def watched(events: list[Event]) -> Iterator[None]:
    """Notes every fsync and every rename, when it is done."""
    before = {name: getattr(os, name) for name in ("fsync", "rename", "replace")}

    def fsync(descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        name = Path(os.readlink(f"/proc/self/fd/{number}")).name
        before["fsync"](number)
        events.append(Event("on disk", name, time.monotonic()))

    def named(kind: str) -> Callable[..., None]:
        def call(source: Any, target: Any, **more: Any) -> None:
            events.append(Event("named", Path(target).name, time.monotonic()))
            before[kind](source, target, **more)

        return call

    os.fsync, os.rename, os.replace = fsync, named("rename"), named("replace")
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(os, name, function)


def saved(folder: Path, damage: bool = False) -> tuple[list[Event], str | None]:
    """Two saves of which one is to be kept; of the second rank 2's file is `damaged` in between, its size unchanged."""
    grid = build_grid(tiny_config("block", pipeline=3).parallel, seed=1)
    parts = build_tiny(tiny_config("block", pipeline=3), grid)
    identity = RunIdentity(parts.pipeline.setup.wire.layers_per_stage, {}, {})
    events: list[Event] = []
    told = None
    for step in (1, 2):
        with watched(events):
            save = CheckpointSave.start(folder, parts.engine, grid, TrainState(step=step), identity)
            if damage and step == 2 and grid.rank == 2:
                _hold_back(save)
            save.wait()
            try:
                save.publish()
                save.retire(keep=1)
            except RuntimeError as error:
                told = str(error)
        dist.barrier()
    return events, told


def _hold_back(save: CheckpointSave) -> None:
    """Flip a byte of this rank's states between their writing and their reading."""
    read_back = save._read_back

    def spoilt() -> None:
        (name,) = [name for name in save._records if name.endswith(".distcp")]
        for folder in (save.partial, save.published):
            if (folder / name).exists():
                _flip(folder / name)
                break
        read_back()

    save._read_back = spoilt  # type: ignore[method-assign]


def _flip(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def test_everything_is_on_disk_before_the_name_that_vouches_for_it(tmp_path: Path) -> None:
    """Files of every rank, then the manifest, then the entries of the folder, then its name, then that."""
    found = run_ranks(saved, 3, tmp_path)
    first = [event for events, _ in found for event in events]
    checkpoints, name = checkpoints_folder(tmp_path), checkpoint_name(2)
    files = read_manifest(checkpoints / name).files
    (published,) = [event.seconds for event in first if event.kind == "named" and event.name == name]
    on_disk = {(event.name, event.seconds) for event in first if event.kind == "on disk"}

    def before(what: str, latest: float) -> float:
        times = [seconds for other, seconds in on_disk if other == what and seconds < latest]
        assert times, f"{what} is not on disk before {name} is"
        return max(times)

    of_ranks = [random_state_file(checkpoints, rank).name for rank in range(3)]
    of_ranks += [file for file in files if file.endswith(".distcp")]
    assert len(of_ranks) == 6
    entries = before(f".{name}.partial", published)
    manifest = before(FILE_NAME, entries)
    assert all(before(file, manifest) for file in of_ranks)
    assert any(other == checkpoints.name and seconds > published for other, seconds in on_disk), "the name itself"
    assert sorted(path.name for path in checkpoints.glob("step-*")) == [name], "one is kept"


def test_a_byte_that_reads_back_differently_is_told_on_every_rank_and_nothing_is_deleted(tmp_path: Path) -> None:
    for _, told in run_ranks(saved, 3, tmp_path, True):
        assert told is not None and "reads back differently" in told and "rank 2 " in told
    names = sorted(path.name for path in checkpoints_folder(tmp_path).glob("step-*"))
    assert names == [checkpoint_name(1), checkpoint_name(2)]


def space(folder: Path) -> str:
    """What is told where one byte too few is free; and nothing may be told where it is enough."""
    grid = build_grid(tiny_config("block", pipeline=2).parallel, seed=1)
    engine = build_tiny(tiny_config("block", pipeline=2), grid).engine
    states = export_state(engine)
    mine = sum(3 * 4 * state.master.numel() for state in states.values()) if grid.data_rank == 0 else 0
    sizes: list[int] = [0] * grid.world_size
    dist.all_gather_object(sizes, mine)
    usage = shutil.disk_usage
    told = ""
    try:
        for free in (sum(sizes), sum(sizes) - 1):
            shutil.disk_usage = lambda _path, free=free: usage(folder)._replace(free=free)  # type: ignore[assignment]
            try:
                check_space(folder / "checkpoints", engine, grid)
            except Refused as refusal:
                told += f"{free - sum(sizes)}: {refusal}"
    finally:
        shutil.disk_usage = usage
    return told


def test_what_a_save_will_take_is_known_before_the_first_step(tmp_path: Path) -> None:
    """To the byte of its tensors: weights and two moments of every stage, once for all replicas."""
    for told in run_ranks(space, 4, tmp_path):
        assert told.startswith("-1: ") and "are free" in told


class AskedAt(StopRequest):
    """A signal that came before the step number `step` of its process."""

    def __init__(self, step: int) -> None:
        super().__init__(lambda: None)
        self.step, self.times = step, 0

    def asked(self) -> bool:
        self.times += 1
        return self.times >= self.step


def stopped_and_gone_on_with(config: RunConfig, folder: Path) -> list[list[str]]:
    """Names of the checkpoints after a run that was stopped, and after the one that goes on from there."""
    names = []
    for stop in (AskedAt(3), None):
        run_loop(config, folder, stop, {"": SyntheticValidation(3)})
        names.append(sorted(path.name for path in checkpoints_folder(folder).glob("step-*")))
        parallel_state.destroy_model_parallel()
    short = replace(config, training=replace(config.training, steps=2))
    observe = replace(short.observe, depth_interval=100, profile_steps=(2, 2))
    code, told = run_loop(replace(short, observe=observe), folder / "short", AskedAt(2))
    assert code == ExitCode.DONE and any(line.startswith("done: 2 of 2 steps") for line in told), told
    return names


def test_a_run_saves_when_due_when_stopped_and_at_its_end_where_it_is_evaluated(tmp_path: Path) -> None:
    base = tiny_config("block")
    config = replace(
        base,
        training=replace(base.training, steps=5, eval_interval_steps=None),
        checkpoint=CheckpointConfig(interval_steps=2, keep=2),
        observe=ObserveConfig(tensorboard=False, log_interval_steps=2, depth_interval=2),
    )
    (names,) = run_ranks(stopped_and_gone_on_with, 1, config, tmp_path)
    assert names == [[checkpoint_name(2), checkpoint_name(3)], [checkpoint_name(4), checkpoint_name(5)]]
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "loss/valid" in record] == [5]
    assert [record["step"] for record in records if "loss/train" in record] == [2, 3, 4, 5], "when due, stopped, done"
    assert (steps_of(tmp_path / "depth.jsonl"), steps_of(tmp_path / "short/depth.jsonl")) == ([2, 4], [2])
    assert [used.first for used in read_history(tmp_path)] == [1]
    assert [path.name for path in (tmp_path / "short/profile").iterdir()] == [
        "steps-00000002-00000002.rank-0000.json.gz"
    ]


def steps_of(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()]
