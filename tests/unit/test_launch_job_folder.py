"""The folder of a launch is gone with it, or with the next launch."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from attnres_train.launch.job_folder import PREFIX, clear_forgotten, job_folder


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def age(folder: Path, seconds: float) -> None:
    os.utime(folder, (time.time() - seconds,) * 2)


def test_a_folder_ends_with_its_launch(tmp_path: Path) -> None:
    with job_folder() as folder:
        (folder / "rank-0000.json").write_text("{}")
        assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_launch_left_goes_and_nothing_else(tmp_path: Path) -> None:
    left, fresh, odd = (tmp_path / f"{PREFIX}{name}" for name in ("left", "fresh", "odd"))
    for folder in (left, fresh, odd):
        folder.mkdir()
    for folder in (left, fresh):
        (folder / ".launch").touch()
    age(left, 3600)
    age(odd, 3600)
    with job_folder() as mine:
        assert sorted(tmp_path.iterdir()) == sorted([fresh, odd, mine]), "one without a lock is nobody's we know"
        age(mine, 3600)
        clear_forgotten(tmp_path)
        assert mine.exists(), "its launch lives"
