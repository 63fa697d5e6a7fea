"""Records on a disk that fills up: one warning, no exception, and curves that can be read before and after."""

from __future__ import annotations

import json
import logging
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attnres_train.observe.console import CONSOLE
from attnres_train.observe.depth_recorder import PictureFolder
from attnres_train.observe.event_file import EventFile
from attnres_train.observe.sinks import Guarded, JsonlSink, Sink

RED_DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000020000000308020000003681e7d20000000f49444154789c63f8cfc0c0f01f8c010ffa02"
    "fe5e5b1d2a0000000049454e44ae426082"
)


@contextmanager
def full_disk(largest_file_bytes: int) -> Iterator[None]:
    """Files cannot grow beyond a size: the last write that fits is cut short, then writes fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def lines(path: Path) -> list[int]:
    """Steps of the lines that are whole."""
    steps = []
    for line in path.read_text().splitlines():
        try:
            steps.append(json.loads(line)["step"])
        except ValueError:
            continue
    return steps


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def write(sink: Sink, steps: range) -> None:
    for step in steps:
        sink.write(step, {"loss/train": float(step), "tokens": 10 * step})


def test_lines_go_on_when_there_is_space_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = Guarded(JsonlSink(path, 0), "metrics.jsonl")
    with caplog.at_level(logging.WARNING, CONSOLE):
        write(sink, range(1, 4))
        with full_disk(path.stat().st_size + 20):
            write(sink, range(4, 7))
        write(sink, range(7, 9))
        sink.close()
    assert lines(path) == [1, 2, 3, 7, 8]
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == [
        "metrics.jsonl cannot be written (File too large); training goes on without its records",
        "metrics.jsonl: 3 records could not be written",
    ]
    JsonlSink(path, 7).close()
    assert lines(path) == [1, 2, 3, 7] and len(path.read_text().splitlines()) == 4, "a resume cleans up"


def test_event_files_go_on_in_a_new_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = Guarded(EventFile(tmp_path, 0), "tensorboard")
    write(sink, range(1, 4))
    (file,) = tmp_path.iterdir()
    with full_disk(file.stat().st_size + 20), caplog.at_level(logging.WARNING, CONSOLE):
        write(sink, range(4, 5))
    assert len(caplog.records) == 1
    write(sink, range(5, 7))
    sink.close()
    assert curves(tmp_path) == {"loss/train": [(step, float(step)) for step in (1, 2, 3, 5, 6)]}


def test_event_files_do_not_multiply_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Guarded(EventFile(tmp_path, 0), "tensorboard")
    write(sink, range(1, 2))
    (file,) = tmp_path.iterdir()
    with full_disk(file.stat().st_size + 20):
        write(sink, range(2, 3))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 100, 0))
    write(sink, range(3, 6))
    assert list(tmp_path.iterdir()) == [file]
    monkeypatch.undo()
    write(sink, range(6, 7))
    assert [step for step, _ in curves(tmp_path)["loss/train"]] == [1, 6]


def test_event_files_of_a_resume_take_the_place_of_what_they_repeat(tmp_path: Path) -> None:
    for start, end in ((0, 10), (5, 12)):
        sink = EventFile(tmp_path, start)
        for step in range(start + 1, end + 1):
            sink.write(step, {"loss/train": step + start / 100, "samples": 3})
        sink.close()
    expected = [(step, step + (0.05 if step > 5 else 0.0)) for step in range(1, 13)]
    assert curves(tmp_path) == {"loss/train": [(step, pytest.approx(value)) for step, value in expected]}


def test_pictures_come_with_their_size(tmp_path: Path) -> None:
    sink = EventFile(tmp_path, 0)
    sink.picture(5, "depth/weights", RED_DOT)
    sink.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (image,) = events.Images("depth/weights")
    assert (image.step, image.width, image.height) == (5, 2, 3) and image.encoded_image_string == RED_DOT


def test_a_folder_that_vanished_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pictures = Guarded(PictureFolder(tmp_path / "gone" / "depth", 0), "depth/")
    with caplog.at_level(logging.WARNING, CONSOLE):
        pictures.picture(1, "depth/weights", RED_DOT)
        pictures.picture(2, "depth/weights", RED_DOT)
    assert [record.getMessage() for record in caplog.records] == [
        "depth/ cannot be written (No such file or directory); training goes on without its records"
    ]


def test_a_resume_cleans_up_whatever_a_power_failure_left(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = [b'{"step": 1}\n', b'{"step": 2}\n']
    damaged = [b"\x00" * 40 + b"\n", b"\xff\xfe{\n", b"17\n", b'{"tokens": 3}\n', b'{"step": 3}\n', b'{"st']
    path.write_bytes(b"".join([whole[0], *damaged[:4], whole[1], *damaged[4:]]))
    JsonlSink(path, 2).close()
    assert path.read_bytes() == b"".join(whole)
    path.write_bytes(b'{"step": 1}\n{"step": 2}')
    JsonlSink(path, 2).close()
    assert path.read_bytes() == b"".join(whole), "killed between a record and its end of line"
