"""The record of a rank: its heartbeat, its exact position, its stack, its last word."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed import HashStore

from attnres_train.launch.process import PARENT, output_is_closed, parent_mark
from attnres_train.launch.record import JOB, Record, read_records, shared_folder, write_record
from attnres_train.observe import presence as module
from attnres_train.observe.presence import Presence


@pytest.fixture
def presence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Presence:
    (tmp_path / "job").mkdir()
    (tmp_path / "run/logs").mkdir(parents=True)
    monkeypatch.setenv(JOB, str(tmp_path / "job"))
    monkeypatch.delenv(PARENT, raising=False)
    return Presence(3, 4, lambda: None)


def test_positions_are_exact_between_beats(presence: Presence, tmp_path: Path) -> None:
    presence._write()
    presence.at("training", 41)
    presence.at("saving")
    found = read_records(tmp_path / "job")[3]
    assert (found.at, found.step, found.pid, found.end) == ("saving", 41, os.getpid(), None)
    presence.end("failed", "KeyError: 1")
    assert (read_records(tmp_path / "job")[3].end, presence.record.reason) == ("failed", "KeyError: 1")


def test_the_meeting_is_on_disk_as_soon_as_it_is_known(presence: Presence, tmp_path: Path) -> None:
    """A rank that is stopped before its next heartbeat is ended by the sign of this meeting, or not at all."""
    store = HashStore()
    store.set(module._MEETING, "abc")
    presence.join(store)
    assert read_records(tmp_path / "job")[3].meeting == "abc"


def test_records_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    write_record(Record(0, "here", 1, 0.0, 0.0), tmp_path)
    (tmp_path / "rank-0001.json").write_text('{"rank": 1')
    (tmp_path / "rank-0002.json").write_text("[]")
    assert list(read_records(tmp_path)) == [0]
    for gone in ("nowhere", "rank-0001.json"):  # a folder that is gone does no harm, nor a file in its place
        write_record(Record(1, "here", 1, 0.0, 0.0), tmp_path / gone)


def test_records_come_back_where_the_run_folder_does(presence: Presence, tmp_path: Path) -> None:
    run = tmp_path / "run"
    presence.enter(run / "logs/rank-0003.log", limit_seconds=600)
    run.rename(tmp_path / "moved")
    presence._write()
    assert not run.exists(), "rank 0 claims it first"
    run.mkdir()
    presence._write()
    assert list(read_records(run / "ranks")) == [3]
    faulthandler.unregister(signal.SIGUSR2)
    faulthandler.enable(sys.__stderr__)


def test_a_rank_that_stands_still_leaves_its_stacks_in_its_log(
    presence: Presence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.05)
    log = tmp_path / "run/logs/rank-0003.log"
    presence.enter(log, limit_seconds=2)
    presence.begin()
    presence.at("training", 1)
    done = threading.Event()
    for _ in range(600):
        done.wait(0.1)
        if (found := read_records(shared_folder(str(log)))[3]).stuck is not None:
            break
    assert found.stuck is not None and "test_presence.py" in found.stuck and found.at == "training"
    assert not found.waits, "it stands in code of its own"
    assert "no progress for" in log.read_text() and "test_a_rank_that_stands_still" in log.read_text()
    before = log.stat().st_size
    os.kill(os.getpid(), signal.SIGUSR2)
    assert log.stat().st_size > before, "a stack on demand"
    presence.at("training", 2)
    assert presence.record.stuck is None
    faulthandler.unregister(signal.SIGUSR2)
    faulthandler.enable(sys.__stderr__)


def test_a_rank_whose_script_has_ended_is_told_once(presence: Presence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.02)
    told: list[int] = []
    presence._parent_is_gone = lambda: told.append(1)
    boot, process, began = parent_mark(os.getpid()).split()
    monkeypatch.setenv(PARENT, f"{boot} {process} {int(began) - 1}")
    presence.begin()
    deadline = time.monotonic() + 60
    while not told and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)  # some beats more
    assert told == [1]


def test_output_that_nobody_reads_is_known() -> None:
    reader, writer = os.pipe()
    assert not output_is_closed(writer)
    os.close(reader)
    assert output_is_closed(writer)
    os.close(writer)


class Standing:
    """Stands where a rank would, in C: what it needs of a GPU, or its own work."""

    wait = tolist = item = read = staticmethod(time.sleep)


def in_wait(seconds: float) -> None:
    Standing.wait(seconds)


def in_a_result(seconds: float) -> None:
    losses = Standing.tolist(seconds)
    del losses


def in_work(seconds: float) -> None:
    Standing.read(seconds)


@pytest.mark.parametrize(("stands", "waits"), [(in_wait, True), (in_a_result, True), (in_work, False)])
def test_a_rank_that_needs_a_result_of_the_gpu_may_wait_for_others(
    stands: Callable[[float], None], waits: bool
) -> None:
    thread = threading.Thread(target=stands, args=(1.0,))
    thread.start()
    while (frame := sys._current_frames()[thread.ident or 0]).f_code is not stands.__code__:  # it is about to begin
        time.sleep(0.01)
    assert module.is_wait(frame) is waits
    thread.join()
