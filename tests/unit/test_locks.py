"""Who holds a lock, a stale one, and file systems that keep none."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from attnres_train.cli import main
from attnres_train.data.files import Publication
from attnres_train.errors import ExitCode, Refused
from attnres_train.launch.job_folder import job_folder
from attnres_train.launch.process import parent_mark
from attnres_train.locks import NoLocks, is_locked, lock
from attnres_train.observe.claim import LOCK, Claim, claim_run_folder, is_claimed, refuse_in_use
from tests.unit.config_files import write

ERRORS = [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL]


@pytest.fixture(params=ERRORS, ids=lambda number: errno.errorcode[number])
def no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every file system refuses locks; why, in words. (tox-dev/filelock#67)"""

    def flock(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)
    return os.strerror(request.param)


def sign(folder: Path, pid: int, mark: str) -> None:
    """Leave the line of an earlier holder."""
    line = {"host": "node-7", "pid": pid, "since": "2026-11-30 21:00:00 +0000", "mark": mark}
    (folder / LOCK).write_text(json.dumps(line))


def test_a_lock_is_one_process_s_until_it_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with open(path, "w") as first, open(path) as second:
        assert lock(first) and not lock(second) and is_locked(path)
    assert not is_locked(path)


def test_who_asks_keeps_nobody_out_who_asks_too(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with open(tmp_path / "lock", encoding="utf-8") as asking:
        assert lock(asking, shared=True)
        assert not is_locked(tmp_path / "lock")
    with open(tmp_path / "lock", encoding="utf-8") as held:
        assert lock(held) and is_locked(tmp_path / "lock")


def test_a_file_system_without_locks_says_so(no_locks: str, tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file, pytest.raises(NoLocks, match=no_locks):
        lock(file)


def test_a_claimed_folder_names_its_run_and_keeps_its_name_when_others_try(tmp_path: Path) -> None:
    refuse_in_use(tmp_path)
    with claim_run_folder(tmp_path):
        held = (tmp_path / LOCK).read_bytes()
        for attempt in (claim_run_folder, refuse_in_use):
            with pytest.raises(Refused) as refusal:
                attempt(tmp_path)
            told = str(refusal.value)
            assert f"another run is writing to {tmp_path}: process {os.getpid()} on {socket.gethostname()}" in told
            assert ", since 20" in told
        assert (tmp_path / LOCK).read_bytes() == held
    refuse_in_use(tmp_path)


@pytest.mark.parametrize("left", [b"", b"\xff", b"[]", b'{"pid": "x"}'], ids=["older", "bytes", "list", "foreign"])
def test_what_a_dead_run_left_in_the_lock_s_file_does_not_matter(left: bytes, tmp_path: Path) -> None:
    (tmp_path / LOCK).write_bytes(left)
    refuse_in_use(tmp_path)
    with claim_run_folder(tmp_path), pytest.raises(Refused, match=f"process {os.getpid()}"):
        refuse_in_use(tmp_path)


def moved_and_copied_back(folder: Path) -> None:
    """As onto another disk: size and time of every file are as before."""
    folder.rename(folder.with_name("old"))
    shutil.copytree(folder.with_name("old"), folder)


@pytest.mark.parametrize(
    "happens",
    [
        lambda folder: folder.rename(folder.with_name("old")),
        shutil.rmtree,
        lambda folder: (folder / LOCK).unlink(),
        moved_and_copied_back,
    ],
    ids=["moved", "deleted", "lock deleted", "copied"],
)
def test_a_folder_that_is_taken_away_from_its_run_is_claimed_anew_or_given_up(
    happens: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    claim = Claim(folder)
    assert not claim.renew() and is_claimed(folder)
    happens(folder)
    assert not is_claimed(folder)
    assert claim.renew() and is_claimed(folder) and not claim.renew()
    (record,) = caplog.records
    assert f"{folder} was moved, deleted or replaced while this run wrote to it; it is claimed" in record.getMessage()
    shutil.rmtree(folder)
    folder.mkdir()
    with claim_run_folder(folder), pytest.raises(RuntimeError, match=f"and another run is writing to .*{os.getpid()}"):
        claim.renew()


def test_a_folder_that_cannot_be_claimed_anew_ends_its_run_in_words(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    claim = Claim(folder)
    shutil.rmtree(folder)
    folder.touch()
    with pytest.raises(RuntimeError, match=r"replaced .* and .*\.lock cannot be written: Not a directory"):
        claim.renew()


def test_without_locks_a_run_goes_on_with_one_warning(
    no_locks: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sign(tmp_path, 4711, f"{parent_mark(1).split()[0]} 4711 12")  # of this machine, and long dead
    with caplog.at_level(logging.WARNING), claim_run_folder(tmp_path):
        refuse_in_use(tmp_path)  # this process's own
    (record,) = caplog.records
    assert f"keeps no locks ({no_locks}); nothing keeps a run of another machine out" in record.getMessage()


def test_without_locks_a_living_run_of_this_machine_is_known_by_its_name(no_locks: str, tmp_path: Path) -> None:
    sign(tmp_path, os.getppid(), parent_mark(os.getppid()))
    assert is_claimed(tmp_path)
    for attempt in (claim_run_folder, refuse_in_use):
        with pytest.raises(Refused, match=f"process {os.getppid()} on node-7, since 2026-11-30 21:00:00"):
            attempt(tmp_path)


def test_without_locks_data_is_written_with_one_warning_and_a_launch_has_its_folder(
    no_locks: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with caplog.at_level(logging.WARNING), Publication(paths) as publication:
        for path in paths:
            publication.open(path).write(b"whole")
        publication.commit()
    assert [path.read_bytes() for path in paths] == [b"whole", b"whole"]
    (record,) = caplog.records
    assert f"keeps no locks ({no_locks}); see that no other process writes this output" in record.getMessage()
    with job_folder() as folder:
        assert folder.is_dir()
    assert not folder.exists()


def test_a_lock_s_file_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    with pytest.raises(Refused, match=r"\.lock cannot be written: Is a directory"):
        claim_run_folder(tmp_path)


def test_check_refuses_a_folder_in_use_only_where_it_is_asked_to(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    run = tmp_path / "run"
    run.mkdir()
    command = ["check", str(write(tmp_path)), "--training.run_folder", str(run), "--world", "1"]
    with claim_run_folder(run):
        free = main(command), main([*command, "--idle"])
    assert free[1] == ExitCode.REFUSED and f"process {os.getpid()}" in capsys.readouterr().err
    assert free[0] == main([*command, "--idle"])
