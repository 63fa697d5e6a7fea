"""The watch over a launcher and its ranks, with a stand-in for both."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from attnres_train.errors import ExitCode
from attnres_train.launch import watch
from attnres_train.launch.record import read_records
from attnres_train.launch.verdict import Verdict
from attnres_train.launch.watch import Job

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = """
import os, sys, time
from pathlib import Path
from attnres_train.launch.record import Record, write_record

def main():
    run = Path("{run}")
    record = Record(0, "here", os.getpid(), time.time(), time.time(), "training", 3, log=f"{{run}}/logs/rank-0000.log")
    {act}
    print("torchrun's own page", file=sys.stderr)
    sys.exit(1)
"""
BEGIN = """
    for folder in (Path("{job}"), run / "ranks"):
        write_record(record, folder)
    while not (run.parent / "looked").exists():
        time.sleep(0.01)
"""
END = """
    record.end = "done"
    write_record(record, run / "ranks")
"""


def watched(folder: Path, act: str, *, asks: bool = False) -> Verdict:
    """What comes of a launcher that does `act` and ends with code 1; it `asks` it to stop once its rank is there."""
    job, run = folder / "job", folder / "run"
    for made in (job, run / "ranks", run / "logs"):
        made.mkdir(parents=True)
    (folder / "standin.py").write_text(STAND_IN.format(run=run, act=act.strip().format(job=job)))
    environment = os.environ | {"PYTHONPATH": f"{folder}:{ROOT}", "ATTNRES_JOB": str(job)}
    with Job([sys.executable, "-m", "standin"], environment, job, range(1)) as started:
        look = started._look

        def noted() -> None:
            there = read_records(job)
            look()
            if there:
                (folder / "looked").touch()
                if asks:
                    started.stop()

        started._look = noted  # type: ignore[method-assign]
        return started.run()


def test_a_job_folder_that_is_cleaned_away_costs_nothing(tmp_path: Path) -> None:
    """systemd-tmpfiles removes what lies in /tmp for ten days, also what is open (systemd/systemd#30760)."""
    verdict = watched(tmp_path, BEGIN + "    import shutil; shutil.rmtree('{job}')" + END)
    assert verdict.code is ExitCode.DONE, verdict.lines


def test_the_launcher_s_own_words_go_to_the_logs_and_to_the_terminal_where_no_rank_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = watched(tmp_path / "told", BEGIN + "    record.end, record.reason = 'failed', 'ValueError: no'" +
                      "\n    write_record(record, Path('{job}'))")  # fmt: skip
    assert verdict.code is ExitCode.FAILED and "ValueError: no" in "".join(verdict.lines)
    assert capsys.readouterr().err == ""
    assert (tmp_path / "told/run/logs/launcher-0000.log").read_text() == "torchrun's own page\n"
    assert watched(tmp_path / "silent", "pass").code is ExitCode.FAILED
    assert capsys.readouterr().err == "torchrun's own page\n"


SAVES = """
    import signal

    def save(*_):
        time.sleep(1.5)
        record.end = "stopped"
        for folder in (Path("{job}"), run / "ranks"):
            write_record(record, folder)
        os._exit(1)

    signal.signal(signal.SIGTERM, save)
"""


def test_ranks_that_were_asked_to_stop_may_save_for_longer_than_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SECONDS_AFTER_FAILURE", 0.1)
    verdict = watched(tmp_path, SAVES + BEGIN + "    time.sleep(60)", asks=True)
    assert verdict.code is ExitCode.STOPPED_ON_SIGNAL, verdict.lines


RANK = """
import os, signal, sys, time
from pathlib import Path
from attnres_train.observe.presence import Presence

rank = int(os.environ["RANK"])
signal.signal(signal.SIGTERM, lambda *_: None)  # as a rank that trains, which saves then, if it comes to it
presence = Presence(rank, 3, lambda: None)
presence.begin()
presence.enter(Path("{run}/logs") / f"rank-{{rank:04d}}.log", 1.0)
presence.at("training", 5)

def hangs():
    time.sleep(600)

class Work:
    wait = time.sleep

def waits():
    Work.wait(4)
    print(f"[rank{{rank}}]:[E1201 ProcessGroupNCCL.cpp:688] [Rank {{rank}}] Watchdog caught collective operation "
          "timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE) ran for 4051 milliseconds before timing out.",
          file=sys.stderr)
    os.abort()

hangs() if rank == 2 else waits()
"""


def test_a_rank_that_sleeps_while_others_abort_is_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under NCCL, whose watchdog ends the processes that wait."""
    monkeypatch.setattr(watch, "SECONDS_AFTER_FAILURE", 1.0)
    job, run = tmp_path / "job", tmp_path / "run"
    for made in (job, run / "ranks", run / "logs"):
        made.mkdir(parents=True)
    (tmp_path / "rank.py").write_text(RANK.format(run=run))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ATTNRES_JOB": str(job)}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", str(tmp_path / "rank.py")]
    with Job([sys.executable, *launcher], environment, job, range(3), alone=True) as started:
        verdict = started.run()
    told = "\n".join(verdict.lines)
    assert verdict.code is ExitCode.FAILED
    assert "missing: rank 2 on " in told and "rank.py:14 hangs" in told, told
    assert "WorkNCCL(SeqNum=12, OpType=ALLREDUCE)" in told
