"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from attnres_train.data.files import Existing, Publication
from attnres_train.errors import Refused


def publish(paths: list[Path], contents: list[bytes], existing: Existing = "refuse") -> bool:
    with Publication(paths, existing) as publication:
        for path, content in zip(paths, contents, strict=True):
            publication.open(path).write(content)
        return publication.commit()


def test_nothing_has_its_final_name_before_the_commit_and_nothing_is_left_aside_after(tmp_path: Path) -> None:
    paths = [tmp_path / "new" / "a", tmp_path / "new" / "b"]
    with Publication(paths) as publication:
        for path in paths:
            publication.open(path).write(b"x")
        assert not any(path.exists() for path in paths)
        assert publication.commit()
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a", "b"]


def test_an_error_before_the_commit_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Publication([tmp_path / "a"]) as publication:
        publication.open(tmp_path / "a").write(b"x")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_aside_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "a.partial").write_bytes(b"half of it, longer than the new content")
    publish([tmp_path / "a"], [b"new"])
    assert (tmp_path / "a").read_bytes() == b"new"
    assert not (tmp_path / "a.partial").exists()


def test_a_second_writer_of_the_same_file_is_refused_and_the_first_is_unharmed(tmp_path: Path) -> None:
    with Publication([tmp_path / "a"]) as first:
        first.open(tmp_path / "a").write(b"first")
        with pytest.raises(Refused, match="another process is writing"):
            publish([tmp_path / "a"], [b"second"])
        first.commit()
    assert (tmp_path / "a").read_bytes() == b"first"


def test_existing_files_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"old")
    with pytest.raises(Refused, match="b: already there"):
        Publication([tmp_path / "a", tmp_path / "b"])
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_replace_replaces_all_and_removes_what_is_not_written_anew(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    publish(paths, [b"1", b"2"])
    with Publication(paths, "replace") as publication:
        publication.open(paths[0]).write(b"3")
        assert publication.commit()
    assert paths[0].read_bytes() == b"3"
    assert not paths[1].exists()


def test_compare_accepts_the_same_bytes_and_refuses_others_or_half_a_set(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    assert publish(paths, [b"1", b"2"], "compare")
    assert not publish(paths, [b"1", b"2"], "compare")
    with pytest.raises(Refused):
        publish(paths, [b"1", b"3"], "compare")
    paths[1].unlink()
    with pytest.raises(Refused):
        publish(paths, [b"1", b"2"], "compare")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_kill_between_two_renames_is_no_obstacle_to_the_next_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "c.bin", tmp_path / "c.idx"]

    def killed(source: Path, target: Path) -> None:
        if target == paths[1]:
            raise SystemExit
        source.replace(target)

    publication = Publication(paths)
    for path in paths:
        publication.open(path).write(b"first")
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("os.rename", killed)
        publication.commit()
    for file in publication._files.values():
        # As the end of the process closes it, without removing it.
        file.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.bin", "c.idx.partial"]
    with Publication(paths) as again:
        for path in paths:
            again.open(path).write(b"second")
        again.commit()
    assert [path.read_bytes() for path in paths] == [b"second", b"second"]
    with pytest.raises(Refused, match="already there"):
        Publication(paths)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_folder_that_cannot_be_flushed_keeps_nothing_from_being_published(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(facebook/rocksdb#2929, libgit2/libgit2#5356)"""
    flush = os.fsync

    def refusing(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", refusing)
    publish([tmp_path / "a"], [b"whole"])
    assert (tmp_path / "a").read_text() == "whole"


def test_contents_are_on_disk_before_their_names_and_the_names_before_the_commit_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []
    flush, rename = os.fsync, os.rename

    def flushed(descriptor: int) -> None:
        seen.append(("flush", os.readlink(f"/proc/self/fd/{descriptor}")))
        flush(descriptor)

    def renamed(source: Path, target: Path) -> None:
        seen.append(("rename", str(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", renamed)
    paths = [tmp_path / "a", tmp_path / "b"]
    assert publish(paths, [b"1", b"2"])
    assert seen == [
        *(("flush", f"{path}.partial") for path in paths),
        *(("rename", str(path)) for path in paths),
        ("flush", str(tmp_path)),
    ]
