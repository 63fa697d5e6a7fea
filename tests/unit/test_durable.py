"""Files that are to survive a power cut: flushed before they get their names, and their names flushed after."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from attnres_train.data.files import Publication
from attnres_train.durable import flush_folder
from attnres_train.observe.sinks import drop_records_after


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What reached the disk and what got its name, in order."""
    events: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def flushed(descriptor: int) -> None:
        events.append(("on disk", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def renamed(source: str, target: str) -> None:
        events.append(("named", Path(target).name))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", renamed)
    return events


def test_a_pair_is_on_disk_before_its_first_name_and_the_names_after_the_last(
    tmp_path: Path, happened: list[tuple[str, str]]
) -> None:
    paths = [tmp_path / "one" / "a", tmp_path / "two" / "b"]
    with Publication(paths) as publication:
        for path in paths:
            publication.open(path).write(b"x")
        publication.commit()
    assert happened[:4] == [("on disk", "a.partial"), ("on disk", "b.partial"), ("named", "a"), ("named", "b")]
    assert sorted(happened[4:]) == [("on disk", "one"), ("on disk", "two")]


def test_what_is_flushed_is_all_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    with Publication([tmp_path / "a"]) as publication:
        publication.open(tmp_path / "a").write(b"123")
        publication.commit()
    assert sizes[0] == 3, "what Python holds back is not on disk"


def test_records_that_are_kept_are_on_disk_before_they_replace_the_file(
    tmp_path: Path, happened: list[tuple[str, str]]
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n')
    drop_records_after(path, 1)
    assert path.read_bytes() == b'{"step": 1}\n'
    assert happened.index(("on disk", "metrics.rewrite")) < happened.index(("named", "metrics.jsonl"))


def test_a_folder_is_flushed_and_a_failing_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []

    def fail(code: int) -> None:
        def fsync(descriptor: int) -> None:
            assert os.path.samestat(os.fstat(descriptor), os.stat(tmp_path))
            flushed.append(code)
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "fsync", fsync)

    for code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        fail(code)
        flush_folder(tmp_path)
    for code in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
        fail(code)
        with pytest.raises(OSError, match=os.strerror(code)):
            flush_folder(tmp_path)
    assert len(flushed) == 6
