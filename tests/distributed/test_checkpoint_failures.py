"""A checkpoint that cannot be written is an error on every rank, and the one before stays whole."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from attnres_train.checkpoint.config import CheckpointConfig
from attnres_train.checkpoint.folder import named_steps
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.checkpoint.sharded import PendingStates
from attnres_train.checkpoint.verify import damages
from attnres_train.config.run_config import RunConfig
from attnres_train.errors import ExitCode
from attnres_train.observe.claim import LOCK, claim_run_folder
from attnres_train.observe.settings_history import read_history
from attnres_train.parallel.config import ParallelConfig
from attnres_train.trainer.signals import StopRequest
from tests.distributed.loop import run_loop
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import tiny_config
from tests.unit.test_sinks import lines


def config(asynchronous: bool = True) -> RunConfig:
    base = tiny_config("block", pipeline=2)
    checkpoint = CheckpointConfig(interval_steps=2, keep=None, asynchronous=asynchronous)
    return replace(base, training=replace(base.training, steps=8), checkpoint=checkpoint)


def outcome(
    config: RunConfig, folder: Path, prepare: Callable[[], None], stop: StopRequest | None = None
) -> tuple[str, float]:
    """What ended a run on this rank, and after how many seconds; `prepare` runs on rank 1 first."""
    if dist.get_rank() == 1:
        prepare()
    started = time.monotonic()
    try:
        run_loop(config, folder, stop)
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - started
    return "", time.monotonic() - started


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))


def small_files_from_the_third_save_on() -> None:
    before_every_write(lambda number: small_files() if number == 3 else None)


def before_every_write(act: Callable[[int], None]) -> None:
    around_every_write(act, after=False)


def around_every_write(act: Callable[[int], None], *, after: bool) -> None:
    """Call `act` with the number of the save, in its thread, before this rank's file is written, or `after` it."""
    write, calls = PendingStates.write, 0

    def spoilt(pending: PendingStates) -> object:
        nonlocal calls
        calls += 1
        number = calls  # a slow write may be overtaken
        if not after:
            act(number)
        written = write(pending)
        if after:
            act(number)
        return written

    PendingStates.write = spoilt  # type: ignore[assignment, method-assign]


def test_a_file_size_limit_on_one_rank_is_refused_before_the_first_step(tmp_path: Path) -> None:
    for told, _ in run_ranks(outcome, 2, config(), tmp_path, small_files):
        assert told.startswith("Refused") and "rank 1: a file-size limit of 100000 bytes" in told
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_file_in_the_place_of_the_folder_is_refused_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a note", encoding="utf-8")
    for told, _ in run_ranks(outcome, 2, config(), tmp_path, lambda: None):
        assert told.startswith("Refused") and "cannot write there: Not a directory" in told


def test_where_folders_cannot_be_renamed_is_found_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on object stores that are mounted (GoogleCloudPlatform/gcsfuse#324)."""
    refuse_calls(monkeypatch, "rename", os.path.isdir, errno.ENOSYS)
    for told, _ in run_ranks(outcome, 2, config(), tmp_path, lambda: None):
        assert told.startswith("Refused")
        assert "cannot rename a folder there (Function not implemented), which is how a checkpoint is published" in told
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert not (tmp_path / "metrics.jsonl").exists()


def refuse_calls(monkeypatch: pytest.MonkeyPatch, call: str, which: Callable[[str | Path], bool], number: int) -> None:
    """Have `os.CALL` fail with the error `number` for the paths for which `which` holds."""
    real = getattr(os, call)

    def refusing(path: str | Path, *arguments: object, **options: object) -> None:
        if which(path):
            raise OSError(number, os.strerror(number), str(path))
        real(path, *arguments, **options)

    monkeypatch.setattr(os, call, refusing)


def test_what_cannot_be_deleted_and_a_hint_that_cannot_be_written_are_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run goes on and is told each once (PrimeIntellect-ai/prime-rl#1763, NVIDIA-NeMo/Automodel#3390)."""
    refuse_calls(monkeypatch, "unlink", lambda path: str(path).startswith("__1_"), errno.EBUSY)
    (tmp_path / "checkpoints/latest").mkdir(parents=True)
    base = config()
    keeping = replace(base, checkpoint=replace(base.checkpoint, keep=1))
    (code, told), _ = run_ranks(run_loop, 2, keeping, tmp_path)
    assert code == ExitCode.DONE and list(named_steps(tmp_path / "checkpoints")) == [8]
    for step in (2, 4, 6):
        (line,) = [text for text in told if f".step-0000000{step}.deleted-1.partial" in text]
        assert "cannot be deleted and takes room: Device or resource busy (__1_0.distcp)" in line
    (line,) = [text for text in told if "latest" in text]
    assert "cannot be written (Is a directory); nothing here reads it" in line


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_write_that_fails_later_ends_all_ranks_and_leaves_the_one_before(asynchronous: bool, tmp_path: Path) -> None:
    outcomes = run_ranks(outcome, 2, config(asynchronous), tmp_path, small_files_from_the_third_save_on)
    for told, seconds in outcomes:
        assert "step-00000006" in told and "was not published: rank 1" in told and "File too large" in told
        assert seconds < 30
    whole = named_steps(tmp_path / "checkpoints")
    assert list(whole) == [2, 4]
    assert not any(damages(path, read_manifest(path)) for path in whole.values())
    assert not list((tmp_path / "checkpoints").glob(".*partial*"))


def replaced_by_a_file(checkpoints: Path) -> None:
    checkpoints.rename(checkpoints.with_name("old"))
    checkpoints.touch()


@pytest.mark.parametrize("after", [False, True], ids=["before it is written", "after"])
@pytest.mark.parametrize("happens", [shutil.rmtree, replaced_by_a_file], ids=["removed", "replaced"])
def test_a_folder_that_vanishes_under_a_save_is_told_on_every_rank(
    happens: Callable[[Path], None], after: bool, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"

    def vanish() -> None:
        around_every_write(lambda number: happens(checkpoints) if number == 2 else None, after=after)

    for told, seconds in run_ranks(outcome, 2, config(), tmp_path, vanish):
        assert f"checkpoint {checkpoints / '.step-00000004.partial'} was not published: " in told
        assert "the folder was moved, removed or replaced while the run saved: " in told and "Errno" not in told
        assert told.endswith(f". The same command goes on from the newest whole checkpoint in {checkpoints}")
        assert seconds < 30


class AtStep(StopRequest):
    """Asks for nothing, and does something before a step."""

    def __init__(self, step: int, act: Callable[[], object]):
        super().__init__(lambda: None)
        self._left, self._act = step, act

    def asked(self) -> bool:
        self._left -= 1
        if self._left == 0:
            self._act()
        return False


def test_a_run_whose_folder_is_moved_claims_its_path_and_goes_on_there(tmp_path: Path) -> None:
    """Else a second launch of the same command would write into the same files."""
    run, moved = tmp_path / "run", tmp_path / "moved"
    at_the_end = replace(config(), checkpoint=CheckpointConfig(interval_steps=8))
    (code, told), _ = run_ranks(run_loop, 2, at_the_end, run, AtStep(3, lambda: dist.get_rank() or run.rename(moved)))
    assert code == ExitCode.DONE and list(named_steps(run / "checkpoints")) == [8]
    (line,) = [text for text in told if "claimed anew" in text]
    assert f"{run} was moved" in line and (run / LOCK).is_file() and (run / "config.toml").is_file()
    assert [used.first for used in read_history(run)] == [3] and [used.first for used in read_history(moved)] == [1]
    assert set(lines(moved / "metrics.jsonl")) == {1, 2} and set(lines(run / "metrics.jsonl")) == set(range(3, 9))


def test_a_run_whose_folder_is_another_run_s_by_now_ends(tmp_path: Path) -> None:
    def taken() -> None:
        run.rename(tmp_path / "moved")
        run.mkdir()
        other.append(claim_run_folder(run))

    run, other = tmp_path / "run", list[object]()
    alone = replace(config(), parallel=ParallelConfig())
    ((told, _),) = run_ranks(outcome, 1, alone, run, lambda: None, AtStep(3, taken))
    assert told.startswith(f"RuntimeError: {run} was moved") and "another run is writing to" in told
    assert not (run / "metrics.jsonl").exists()


def test_training_goes_on_while_a_checkpoint_is_written_and_a_second_one_waits(tmp_path: Path) -> None:
    """Writing takes longer than the steps between two saves; every checkpoint is whole and of its own step."""

    def slowly() -> None:
        before_every_write(lambda _: time.sleep(0.5))

    for told, _ in run_ranks(outcome, 2, config(), tmp_path / "slow", slowly):
        assert told == ""
    run_ranks(outcome, 2, config(asynchronous=False), tmp_path / "waiting", lambda: None)
    for step in (2, 4, 6, 8):
        slow, waiting = (
            read_manifest(tmp_path / name / f"checkpoints/step-{step:08d}").files for name in ("slow", "waiting")
        )
        states = [name for name in slow if name.endswith(".distcp")]
        assert len(states) == 2 and all(slow[name] == waiting[name] for name in states)
