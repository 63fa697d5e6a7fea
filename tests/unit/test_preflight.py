"""What ranks compare before they compute, and when a failed run is launched again."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from attnres_train.launch.commands import forwarded
from attnres_train.launch.process import PARENT, STOP_SIGNALS, parent_has_ended, parent_mark
from attnres_train.launch.record import Record, write_record
from attnres_train.observe.claim import claim_run_folder, is_claimed
from attnres_train.supervise import Attempt, Supervisor, folder_of, why_not_again
from attnres_train.trainer.preflight import RankReport, disagreements, notes
from tests.unit.config_files import SMALL, write

SOUND = RankReport(
    host="node-0",
    facts={"torch": "2.13.0", "attnres_train's code": "abc"},
    settings={"optimizer.beta2": 0.95},
    data={"train": "1234", "valid": "none"},
    backend="native",
    clock=100.0,
    free_bytes=1 << 40,
    sees_folder=True,
)
OTHER = replace(SOUND, host="node-1")


def told(*everybody: RankReport) -> str:
    return "\n".join(map(str, disagreements(everybody, Path("/runs/my"))))


def test_equal_ranks_have_nothing_to_say() -> None:
    assert told(SOUND, OTHER) == "" and notes([SOUND, OTHER]) == []


def test_each_difference_is_named_with_both_values_and_ranks() -> None:
    facts, settings = SOUND.facts | {"torch": "2.12.0"}, {"optimizer.beta2": 0.9, "optimizer.new": 1}
    odd = replace(OTHER, facts=facts, settings=settings, data={"train": "1234", "valid": "5678"})
    text = told(SOUND, SOUND, odd, odd)
    assert "torch: '2.13.0' on rank 0 (node-0), '2.12.0' on rank 2 (node-1)" in text
    assert "optimizer.beta2: 0.95 on rank 0 (node-0), 0.9 on rank 2 (node-1)" in text
    assert "valid: 'none' on rank 0 (node-0), '5678' on rank 2 (node-1)" in text
    assert "optimizer.new: None on rank 0 (node-0), 1 on rank 2 (node-1)" in text
    assert text.count("->") == 4 and "code" not in text.split("->")[0]


def test_another_depth_backend_is_refused_but_not_another_reason_for_the_same_one() -> None:
    lean = replace(OTHER, backend="lean (native: no C++ compiler (/nowhere/c++) on PATH)")
    assert (
        "residual.backend: rank 0 (node-0) would use native, rank 2 (node-1) lean (native: no C++ compiler "
        "(/nowhere/c++) on PATH): they round differently" in told(SOUND, SOUND, lean)
    )
    assert told(lean, replace(lean, backend="lean (native: no C++ compiler (/usr/bin/c++) on PATH)")) == ""


def test_a_run_folder_that_is_not_shared_is_refused_by_host() -> None:
    assert "rank 1 (node-1) cannot see what rank 0 (node-0) writes there" in told(
        SOUND, replace(OTHER, sees_folder=False)
    )


def test_a_full_disk_is_refused_and_clocks_are_told_of() -> None:
    assert "1 MiB are free for /runs/my on node-1" in told(SOUND, replace(OTHER, free_bytes=1 << 20))
    (note,) = notes([SOUND, replace(OTHER, clock=107.5)])
    assert "clocks are 7.5 s apart: rank 1 (node-1) is ahead of rank 0 (node-0)" in note
    assert notes([SOUND, replace(OTHER, clock=101.0)]) == []


@pytest.mark.parametrize(
    ("attempts", "reason"),
    [
        ([Attempt(7, 0)], None),
        ([Attempt(None, 5)], "before its first step"),
        ([Attempt(7, 5), Attempt(9, 5)], None),
        ([Attempt(7, 5), Attempt(7, 5)], "step 7 failed twice"),
        ([Attempt(7, 5), Attempt(9, 5), Attempt(7, 5)], "step 7 failed twice"),
        ([Attempt(7, 5), Attempt(6, 5)], "no progress: step 6 after 7"),
        ([Attempt(70, 5), Attempt(60, 50)], None),
    ],
)
def test_a_run_is_launched_again_only_after_progress(attempts: list[Attempt], reason: str | None) -> None:
    found = why_not_again(attempts)
    assert found is None if reason is None else found is not None and reason in found


def test_the_supervisor_finds_the_run_folder_of_a_launch(tmp_path: Path) -> None:
    config = write(tmp_path, SMALL)
    command = ["launch/torchrun.sh", "--ranks", "2", str(config), "--training.run_folder", "there", "--nodes=2"]
    assert folder_of(command) == Path("there").absolute()
    assert folder_of(command[:4]) == Path("runs").absolute() / config.stem


def test_a_launch_has_come_as_far_as_its_furthest_rank_and_newest_checkpoint(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        supervisor = Supervisor(["true"], tmp_path)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    (tmp_path / "ranks").mkdir()
    assert supervisor._outcome(100.0) == Attempt(None, 0)
    for rank, (written, step) in enumerate([(101.0, 8), (103.0, 9), (99.0, 70), (104.0, None)]):
        write_record(Record(rank, "here", 1, 90.0, written, step=step), tmp_path / "ranks")
    for step in (5, 7):
        (tmp_path / f"checkpoints/step-{step:08d}").mkdir(parents=True)
    assert supervisor._outcome(100.0) == Attempt(9, 7), "rank 2's record is of the launch before"


def test_pdsh_forwards_what_ranks_need_and_nothing_of_this_machine() -> None:
    environment = {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "1",
        "ATTNRES_JOB": "/tmp/x",
        "ATTNRES_PARENT": "boot 1 2",
        "HOME": "/root",
        "PYTHONPATH": "a",
    }
    assert forwarded(environment) == ["NCCL_DEBUG=INFO", "OMP_NUM_THREADS=1", "PYTHONPATH=a"]


def test_a_rank_born_after_its_launcher_died_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    assert not parent_has_ended(os.getppid())
    assert parent_has_ended(os.getppid() + 1), "another parent than before"
    boot, process, began = parent_mark(os.getpid()).split()
    monkeypatch.setenv(PARENT, f"{boot} {process} {began}")
    assert not parent_has_ended(os.getppid())
    monkeypatch.setenv(PARENT, f"{boot} {process} {int(began) - 1}")
    assert parent_has_ended(os.getppid()), "the script that started it is gone"


def test_a_run_folder_is_claimed_as_long_as_its_run_lives(tmp_path: Path) -> None:
    """What the supervisor waits for before it launches again."""
    assert not is_claimed(tmp_path), "nobody ever ran here"
    lock = claim_run_folder(tmp_path)
    assert is_claimed(tmp_path) and is_claimed(tmp_path), "asking changes nothing"
    lock.close()
    assert not is_claimed(tmp_path)
