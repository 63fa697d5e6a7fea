"""Records on a disk that fills up: one warning, no exception, and curves that can be read before and after."""

from __future__ import annotations

import json
import logging
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attnres_train.depth.layout import DepthLayout
from attnres_train.observe import event_file
from attnres_train.observe.console import CONSOLE
from attnres_train.observe.depth_recorder import DepthRecorder, PictureFolder
from attnres_train.observe.event_file import EventFile
from attnres_train.observe.metrics import MfuTerms
from attnres_train.observe.recorder import Recorder
from attnres_train.observe.sinks import Guarded, JsonlSink, Sink, guarded_lines, keep_text
from attnres_train.observe.tags import DEPTH_DESCRIPTIONS, DESCRIPTIONS
from attnres_train.observe.wandb_sink import WandbSink
from attnres_train.parallel.grid import Grid
from attnres_train.progress import TrainState
from tests.distributed.tiny import tiny_config
from tests.unit.run_folders import look_at

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
    sink = guarded_lines(path, 0)
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


@pytest.mark.parametrize(
    ("spoil", "left", "dropped"),
    [
        (lambda data: data[:20] + b"\xff\0" + data[22:], [2, 3, 4], "1 damaged line"),
        (lambda data: data.replace(b"step", b"st{p", 2), [3, 4], "2 damaged lines"),
        (lambda data: data[:-5], [1, 2, 3], None),
        (lambda data: data + b"\0" * 512, [1, 2, 3, 4], None),
        (lambda data: data + b"\n", [1, 2, 3, 4], None),
    ],
    ids=["bytes overwritten", "two lines", "cut by a kill", "zeros of a power failure", "empty line"],
)
def test_damaged_lines_go_with_one_warning_and_a_cut_one_without(
    spoil: Callable[[bytes], bytes],
    left: list[int],
    dropped: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "metrics.jsonl"
    write(guarded_lines(path, 0), range(1, 5))
    path.write_bytes(spoil(path.read_bytes()))
    write(guarded_lines(path, 4), range(5, 7))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [*left, 5, 6]
    told_of = [f"{path}: {dropped}, no record any more, dropped; the others stay"] if dropped else []
    assert told(caplog) == told_of


def test_event_files_go_on_in_a_new_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = Guarded(lambda: EventFile(tmp_path, 0), "tensorboard")
    write(sink, range(1, 4))
    (file,) = tmp_path.iterdir()
    with full_disk(file.stat().st_size + 20), caplog.at_level(logging.WARNING, CONSOLE):
        write(sink, range(4, 5))
    assert len(caplog.records) == 1
    write(sink, range(5, 7))
    sink.close()
    assert curves(tmp_path) == {"loss/train": [(step, float(step)) for step in (1, 2, 3, 5, 6)]}


def test_event_files_do_not_multiply_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Guarded(lambda: EventFile(tmp_path, 0), "tensorboard")
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


def test_a_resume_where_the_clock_is_behind_comes_last_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are read in the order of their names (tensorflow/tensorboard#5958): the resumed run's was taken back."""
    for start, clock in ((0, 2_000_000_000.5), (5, 1_999_990_000.5)):
        monkeypatch.setattr(time, "time", lambda clock=clock: clock)
        sink = EventFile(tmp_path, start)
        write(sink, range(start + 1, start + 7))
        sink.close()
    assert [step for step, _ in curves(tmp_path)["loss/train"]] == list(range(1, 12))


@pytest.mark.parametrize("old", [True, False], ids=["earlier version", "this version"])
def test_the_depth_comes_behind_all_others_and_a_resumed_run_keeps_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    """TensorBoard sorts groups by name (tensorflow/tensorboard#865)."""
    values = {tag: 1.0 for tag in (*DESCRIPTIONS, *(f"depth/{kind}/head" for kind in DEPTH_DESCRIPTIONS))}
    with monkeypatch.context() as context:
        if old:
            context.setattr(event_file, "in_tensorboard", str)
        first = EventFile(tmp_path, 0)
        write(first, range(1, 11))
        first.write(10, values)
        first.close()
    second = EventFile(tmp_path, 10)
    second.write(20, values)
    second.picture(20, "depth/weights", RED_DOT)
    second.close()
    found = curves(tmp_path)
    groups = list(dict.fromkeys(tag.partition("/")[0] for tag in sorted(found)))
    others = ["loss", "memory", "optim", "pipeline", "throughput", "time"]
    assert groups == (["depth", *others] if old else [*others, "z-depth"])
    assert [step for step, _ in found[f"{'' if old else 'z-'}depth/entropy/head"]] == [10, 20], (
        "one set, not two halves"
    )
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["images"] == [f"{'' if old else 'z-'}depth/weights"]


def test_pictures_come_with_their_size(tmp_path: Path) -> None:
    sink = EventFile(tmp_path, 0)
    sink.picture(5, "depth/weights", RED_DOT)
    sink.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (image,) = events.Images("z-depth/weights")
    assert (image.step, image.width, image.height) == (5, 2, 3) and image.encoded_image_string == RED_DOT


def test_a_folder_that_vanished_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pictures = Guarded(lambda: PictureFolder(tmp_path / "gone" / "depth", 0), "depth/")
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


@pytest.fixture
def no_space(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A disk without a free byte, until it is undone."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 100, 0))
    yield monkeypatch


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_event_files_begun_after_a_failure_take_nothing_back(tmp_path: Path) -> None:
    sink = Guarded(lambda: EventFile(tmp_path, 0), "tensorboard")
    write(sink, range(1, 9))
    (file,) = tmp_path.iterdir()
    with full_disk(file.stat().st_size):
        write(sink, range(9, 10))
    sink.write(6, {"time/checkpoint_durable_seconds": 1.0})
    write(sink, range(10, 11))
    sink.close()
    assert [step for step, _ in curves(tmp_path)["loss/train"]] == [*range(1, 9), 10]


def test_event_files_that_could_not_be_opened_at_a_resume_still_replace_what_it_repeats(tmp_path: Path) -> None:
    first = EventFile(tmp_path, 0)
    write(first, range(1, 9))
    first.close()
    with full_disk(10):  # the header is cut, too
        sink = Guarded(lambda: EventFile(tmp_path, 4), "tensorboard")
        write(sink, range(5, 7))
    assert len(list(tmp_path.iterdir())) == 1, "what holds nothing is taken away again"
    write(sink, range(7, 8))
    sink.close()
    assert [step for step, _ in curves(tmp_path)["loss/train"]] == [1, 2, 3, 4, 7]


def test_a_disk_full_at_a_resume_costs_records_and_doubles_none(
    tmp_path: Path, no_space: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(1, 9)))
    before = path.read_bytes()
    sink = guarded_lines(path, 4)
    write(sink, range(5, 7))
    sink.picture(6, "depth/weights", RED_DOT)  # no record is lost: lines hold none
    assert path.read_bytes() == before, "nothing is appended while old records of these steps are there"
    no_space.undo()
    with full_disk(20):
        write(sink, range(7, 8))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path], "no half of a replacement is left"
    write(sink, range(8, 10))
    sink.close()
    assert lines(path) == [1, 2, 3, 4, 8, 9]
    assert told(caplog) == [
        "metrics.jsonl cannot be written (No space left on device); training goes on without its records",
        "metrics.jsonl: 3 records could not be written",
    ]


def test_a_text_that_cannot_be_replaced_stays_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "config.toml"
    keep_text(path, "steps = 10\n")
    with full_disk(8):
        keep_text(path, "steps = 20\n")
        assert path.read_text() == "steps = 10\n" and list(tmp_path.iterdir()) == [path]
        keep_text(path, "steps = 10\n")
    assert told(caplog) == [
        f"{path} cannot be written (File too large); training goes on, and config.toml stays as it was"
    ]
    keep_text(path, "steps = 20\n")
    assert path.read_text() == "steps = 20\n"


def test_a_recorder_begins_on_a_full_disk(
    tmp_path: Path, no_space: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "depth").mkdir()
    for name in ("metrics.jsonl", "samples.jsonl", "depth.jsonl"):
        (tmp_path / name).write_text('{"step": 9}\n')
    config = tiny_config("block")
    wanted = {"sample_log": True, "tensorboard": True, "wandb_project": "depth", "depth_interval": 1}
    config = replace(config, observe=replace(config.observe, **wanted))
    tries: list[int] = []

    def init(**_: Any) -> None:
        tries.append(1)
        raise OSError(ENOSPC, "No space left on device")

    no_space.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    grid, state = cast(Grid, SimpleNamespace(keeps_run=True)), TrainState(step=4)
    recorder = Recorder(config, grid, tmp_path, state, MfuTerms(1e9, 1e12))
    recorder.checkpoint_started(state, 0.1)
    names = ("metrics.jsonl", "tensorboard", "wandb", "depth.jsonl", "samples.jsonl")
    assert [words.partition(" cannot be written (No space")[0] for words in told(caplog)] == list(names)
    assert tries == [1], "each try may take long"
    recorder.close()


def test_a_picture_cut_short_is_taken_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = DepthRecorder(tmp_path, 0, lambda *_: None)
    with full_disk(20_000):
        recorder.record(1, look_at(DepthLayout(8, "block", 2)))
        recorder.wait()
    assert list((tmp_path / "depth").iterdir()) == []
    recorder.close()
    assert told(caplog)[-1] == "depth/: 1 record could not be written"


def test_wandb_out_of_reach_is_told_once_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class CommError(Exception):
        pass

    def fails(*_: Any, **__: Any) -> None:
        raise CommError("network gone")

    tries: list[int] = []
    run = SimpleNamespace(log=fails, finish=fails)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: run, Image=fails))
    sink = Guarded(lambda: WandbSink("depth", tmp_path, {}), "wandb", once=True)
    write(sink, range(1, 3))
    sink.picture(2, "depth/weights", RED_DOT)
    sink.close()
    words = "wandb cannot be written (CommError: network gone); training goes on without its records"
    assert told(caplog) == [words, "wandb: 3 records could not be written"]

    caplog.clear()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: (tries.append(1), fails()), Image=None))
    sink = Guarded(lambda: WandbSink("depth", tmp_path, {}), "wandb", once=True)
    write(sink, range(1, 3))
    sink.close()
    assert told(caplog) == [words, "wandb: 2 records could not be written"] and tries == [1], "each try takes long"
