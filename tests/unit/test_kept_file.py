"""Files that somebody deletes, replaces or cuts while a run writes them: told, and written on.

The kind: MakazhanAlpamys/Soup#343, where a log whose folder was cleaned away lost every later record without a word.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from attnres_train.observe.console import LogFile
from attnres_train.observe.event_file import EventFile
from attnres_train.observe.kept_file import Gone, KeptFile
from attnres_train.observe.sinks import Guarded, Sink, guarded_lines
from tests.unit.test_sinks import curves, full_disk, lines, told, write


def replace_by_a_copy(path: Path) -> None:
    """As an editor or `sed -i` does."""
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)


def rotate(path: Path) -> None:
    path.rename(path.with_suffix(".1"))


def cut(path: Path) -> None:
    os.truncate(path, 10)


def cut_by_a_byte(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(
    ("happens", "words", "left"),
    [
        (Path.unlink, "is not there any more", [4, 5]),
        (rotate, "is not there any more", [4, 5]),
        (lambda path: shutil.rmtree(path.parent), "is not there any more", [4, 5]),
        (replace_by_a_copy, "is another file now", [1, 2, 3, 4, 5]),
        (cut, "was cut short", [4, 5]),
        (cut_by_a_byte, "was cut short", [1, 2, 3, 4, 5]),
    ],
    ids=["deleted", "rotated", "folder deleted", "replaced", "cut", "cut by a byte"],
)
def test_lines_go_on_where_they_belong(
    happens: Callable[[Path], None], words: str, left: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    sink = guarded_lines(path, 0)
    write(sink, range(1, 4))
    happens(path)
    write(sink, range(4, 6))
    sink.close()
    assert lines(path) == left
    assert told(caplog) == [f"metrics.jsonl: {path} {words}; the records from here on are written there anew"]


@pytest.mark.parametrize("whole", [True, False], ids=["folder", "file"])
def test_curves_go_on_in_a_new_event_file_with_their_words(
    whole: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "tensorboard"
    sink = Guarded(lambda: EventFile(folder, 0), "tensorboard")
    write(sink, range(1, 4))
    (file,) = folder.iterdir()
    shutil.rmtree(folder) if whole else file.unlink()
    write(sink, range(4, 6))
    sink.close()
    assert curves(folder) == {"loss/train": [(4, 4.0), (5, 5.0)]}
    (new,) = folder.iterdir()
    assert b"nats a token" in new.read_bytes(), "the description went with the file that had it"
    assert told(caplog) == [
        f"tensorboard: {file} is not there any more; the records from here on are written there anew"
    ]


def test_an_event_file_that_was_cut_is_left_and_another_goes_on(tmp_path: Path) -> None:
    sink: Sink = Guarded(lambda: EventFile(tmp_path, 0), "tensorboard")
    write(sink, range(1, 4))
    (file,) = tmp_path.iterdir()
    cut(file)
    write(sink, range(4, 6))
    sink.close()
    file.unlink()
    assert curves(tmp_path) == {"loss/train": [(4, 4.0), (5, 5.0)]}


def test_what_is_taken_away_with_every_record_is_told_once_and_what_is_lost_at_the_end_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = guarded_lines(path, 0)
    for step in range(1, 5):
        path.unlink()
        sink.write(step, {})
    assert len(told(caplog)) == 1
    sink.write(5, {})
    path.unlink()
    sink.close()
    assert len(told(caplog)) == 2


def test_a_full_disk_where_a_file_was_taken_away_costs_records_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = guarded_lines(path, 0)
    write(sink, range(1, 3))
    path.unlink()
    with full_disk(10):
        write(sink, range(3, 5))
    write(sink, range(5, 6))
    sink.close()
    assert lines(path) == [5]
    assert [words.rpartition("; ")[0] for words in told(caplog)[1:2]] == [
        "metrics.jsonl cannot be written (File too large)"
    ]


def test_a_file_that_is_numbered_anew_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some network file systems do, where a new event file a record would be worse than what it guards against."""
    file = KeptFile(tmp_path / "metrics.jsonl")
    file.write(b"1\n")
    really = os.stat

    def anew(path: Path) -> os.stat_result:
        found = really(path)
        fields = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        return os.stat_result([*found[:1], found.st_ino + 1, *found[2:]], fields)

    monkeypatch.setattr(os, "stat", anew)
    file.write(b"2\n")
    monkeypatch.undo()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"1\n2\n"
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(Gone):
        file.write(b"3\n")


def test_the_log_of_a_rank_goes_on_and_never_ends_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    path = tmp_path / "logs" / "rank-0000.log"
    log = logging.Logger("rank")
    log.addHandler(LogFile(path, encoding="utf-8"))
    log.warning("one")
    shutil.rmtree(path.parent)
    log.warning("two")
    assert path.read_text() == "two\n"
    shutil.rmtree(path.parent)
    path.parent.touch()  # a file where the folder was
    log.warning("three")
    path.parent.unlink()
    log.warning("four")
    assert path.read_text() == "four\n"
