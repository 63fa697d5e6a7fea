"""Every tag that a run writes is described, and TensorBoard is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attnres_train.depth.layout import DepthLayout
from attnres_train.observe.depth_recorder import MAP_TAG
from attnres_train.observe.event_file import EventFile
from attnres_train.observe.metrics import LogInterval, MfuTerms, Peaks, step_metrics
from attnres_train.observe.recorder import Recorder
from attnres_train.observe.tags import DEPTH_DESCRIPTIONS, DESCRIPTIONS, PHASES, describe_tag, in_tensorboard
from attnres_train.parallel.grid import Grid
from attnres_train.progress import LossSum, StepReport, TrainState
from tests.distributed.tiny import tiny_config
from tests.unit.run_folders import look_at
from tests.unit.test_sinks import RED_DOT

STATE = TrainState(step=1)
LOSSES = {"train": LossSum(1.0, 1)}


class Written(dict[str, Any]):
    """A sink that keeps the last value of each tag."""

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self.update(values)

    def picture(self, step: int, tag: str, png: bytes) -> None:
        self[tag] = png

    def close(self) -> None:
        pass


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """All that can be recorded of a step, an evaluation, a checkpoint and a look."""
    another = cast(Grid, SimpleNamespace(keeps_run=False))
    recorder, sink = Recorder(tiny_config("block"), another, tmp_path, STATE, MfuTerms(1e9, 1e12)), Written()
    recorder.sinks.append(sink)
    recorder.evaluation(STATE, {"": LossSum(2.0, 1)}, {"": 0.25}, 1.0)
    recorder.checkpoint_started(STATE, 0.1)
    recorder.checkpoint_durable(STATE, tmp_path, 1.0)
    recorder.depth(STATE, look_at(DepthLayout(8, "block", 2)))
    recorder._picture(1, MAP_TAG, RED_DOT)
    interval, report = (
        LogInterval(2.0, dict.fromkeys(PHASES, 0.1), 1, 4096),
        StepReport(LOSSES, 1, 1, True, 1, 0, 0, {}, {}),
    )
    sink |= step_metrics(STATE, report, interval, MfuTerms(1e9, 1e12), devices=2, peaks=Peaks(1.0, 0))
    return sink


def test_every_tag_has_a_description_and_every_description_a_tag(written: Written) -> None:
    tags = {tag for tag in written if "/" in tag}
    assert [tag for tag in tags if not describe_tag(tag)] == []
    depth = {tag.split("/")[1] for tag in tags - DESCRIPTIONS.keys()}
    assert (tags & DESCRIPTIONS.keys(), depth) == (DESCRIPTIONS.keys(), DEPTH_DESCRIPTIONS.keys())
    assert describe_tag("loss/other") == describe_tag("depth/other/head") == ""


def test_descriptions_go_with_the_first_value_that_a_process_writes(tmp_path: Path, written: Written) -> None:
    for start in (0, 2):
        sink = EventFile(tmp_path, start)
        for step in (start + 1, start + 2):
            sink.write(step, {tag: value for tag, value in written.items() if tag != MAP_TAG})
            sink.picture(step, MAP_TAG, RED_DOT)
        sink.close()
    data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for tag in ("loss/valid", MAP_TAG):
        assert data.count(describe_tag(tag).encode()) == 2, "once a process, not once a step"
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    for tag in (tag for tag in written if "/" in tag):
        metadata = events.SummaryMetadata(in_tensorboard(tag))
        assert metadata.summary_description == describe_tag(tag)
        assert metadata.data_class, "else TensorBoard's fast server drops the words"
    assert [image.step for image in events.Images(in_tensorboard(MAP_TAG))] == [1, 2, 3, 4]
