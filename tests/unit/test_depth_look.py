"""What is made of a look at the depth: tags, records, alarms, the map."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnres_train.depth.layout import DepthLayout
from attnres_train.observe import depth_recorder
from attnres_train.observe.depth_look import DepthLook, ReaderLook, reader_name
from attnres_train.observe.depth_map import draw_map, png
from attnres_train.observe.depth_recorder import DepthRecorder

BLOCK = DepthLayout(8, "block", 3)
FULL = DepthLayout(200, "full", 1)
STANDARD = DepthLayout(8, "standard", None)


def look_of(layout: DepthLayout, seed: int = 0) -> DepthLook:
    draws = random.Random(seed)
    readers = []
    for index in range(layout.num_sublayers + 1):
        reads, head = layout.reads(index), index == layout.num_sublayers
        weights = [draws.uniform(0.5, 1.5) for _ in range(reads.count)]
        shares = tuple(weight / sum(weights) for weight in weights)
        sized = (None, None, None) if head else (0.5, 2.0, 0.01)
        has = layout.has_sources
        readers.append(
            ReaderLook(
                reader_name(layout, index),
                reads.sources,
                reads.partial,
                shares if has else None,
                0.7 if has else None,
                1.5 if has else None,
                1.0,
                *sized,
            )  # fmt: skip
        )
    return DepthLook(tuple(readers))


def with_reader(look: DepthLook, index: int, **changes: object) -> DepthLook:
    readers = list(look.readers)
    readers[index] = replace(readers[index], **changes)  # type: ignore[arg-type]
    return DepthLook(tuple(readers))


def test_readers_sort_by_depth_and_tell_attention_from_mlp() -> None:
    names = [reader.name for reader in look_of(FULL).readers]
    assert names[:2] == ["00-attention", "00-mlp"] and names[-2:] == ["99-mlp", "head"]
    assert names == sorted(names)
    assert reader_name(DepthLayout(2 * 101, "full", 1), 0) == "000-attention"


def test_curves_have_a_tag_for_every_number_that_there_is() -> None:
    look = look_of(BLOCK)
    curves = look.curves()
    reader = look.readers[4]  # sources 0 and 1, and the partial
    assert reader.name == "02-attention" and reader.sources == (0, 1) and reader.partial
    assert curves["depth/weight_on_embedding/02-attention"] == reader.weights[0]
    assert curves["depth/weight_on_newest/02-attention"] == reader.weights[1]
    assert curves["depth/weight_on_partial/02-attention"] == reader.weights[2]
    assert curves["depth/weight/02-attention/source-01"] == reader.weights[1]
    assert curves["depth/gradient_rms/02-attention"] == 0.01 and curves["depth/query_norm/head"] == 1.5
    assert "depth/weight_on_partial/01-mlp" not in curves, "it completes nothing and reads no partial"
    assert "depth/output_rms/head" not in curves and None not in curves.values()
    of_first = {tag.removeprefix("depth/") for tag in curves if "00-attention" in tag}
    kinds = ("weight_on_embedding", "weight_on_newest", "entropy", "query_norm")
    kinds += ("input_rms", "output_rms", "partial_rms", "gradient_rms")
    expected = {"weight/00-attention/source-00", *(f"{kind}/00-attention" for kind in kinds)}
    assert of_first == expected, "every sublayer has every curve, though the first has no choice"
    assert set(look_of(STANDARD).curves()) == {
        f"depth/{size}/{reader.name}"
        for reader in look_of(STANDARD).readers
        for size in ("input_rms", "output_rms", "partial_rms", "gradient_rms")
        if reader.name != "head" or size == "input_rms"
    }
    assert not any(tag.startswith("depth/weight/") for tag in look_of(FULL).curves()), "20,000 curves help nobody"


@pytest.mark.parametrize("layout", [BLOCK, STANDARD], ids=["block", "standard"])
def test_a_record_holds_the_whole_look(layout: DepthLayout) -> None:
    look = look_of(layout)
    assert DepthLook.of_record(json.loads(json.dumps(look.record()))) == look


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": ()}, "02-attention: 0 weights of 3 that it reads"),
        ({"weights": (0.5, 0.5)}, "02-attention: 2 weights of 3 that it reads"),
        ({"sources": (), "weights": (1.0,)}, "02-attention: 1 weights of no source"),
        ({"sources": (0, 9)}, "02-attention: source 9 of a model of 9 readers"),
        ({"sources": (-1, 0)}, "02-attention: source -1 of a model of 9 readers"),
        ({"sources": (0, 10**30)}, f"source {10**30} of a model of 9 readers"),
    ],
)
def test_a_record_that_no_model_can_have_made_is_refused(changes: dict[str, Any], words: str) -> None:
    record = json.loads(json.dumps(with_reader(look_of(BLOCK), 4, **changes).record()))
    with pytest.raises(ValueError, match=words):
        DepthLook.of_record(record)


def test_the_map_has_a_cell_for_what_is_read_and_none_for_what_is_not() -> None:
    look = look_of(BLOCK)
    figure = draw_map(look, "step 5")
    assert figure is not None
    axes = figure.axes[0]
    cells = axes.images[0].get_array()
    assert cells.shape == (9, 4), "9 readers; sources 0 to 2 and the partial"
    assert cells[4].tolist() == [
        look.readers[4].weights[0],
        look.readers[4].weights[1],
        None,
        look.readers[4].weights[2],
    ]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["embedding", "1", "2", "partial"]
    colours = {label.get_text(): label.get_color() for label in axes.get_yticklabels()}
    assert len({colours["00-attention"], colours["00-mlp"], colours["head"]}) == 3
    written = {text.get_position(): text.get_text() for text in axes.texts}
    assert len(written) == sum(len(reader.weights or ()) for reader in look.readers)
    assert written[3, 4] == f"{look.readers[4].weights[2]:.2f}", "column, row"
    assert png(figure).startswith(b"\x89PNG")
    assert draw_map(look_of(STANDARD), "step 5") is None


def test_labels_of_a_map_of_many_readers_do_not_lie_on_each_other() -> None:
    figure = draw_map(look_of(FULL), "step 5")
    assert figure is not None
    axes = figure.axes[0]
    rows = axes.get_yticks().tolist()
    assert rows[-1] == 200 and min(b - a for a, b in zip(rows, rows[1:], strict=False)) >= rows[1] - rows[0] == 3
    assert not axes.texts, "no number fits into a cell"
    low = draw_map(look_of(DepthLayout(100, "block", 20)), "step 5")
    assert low is not None and not low.axes[0].texts, "of few sources neither, where there are many readers"


def test_a_recorder_leaves_lines_and_pictures_and_drops_what_a_resume_repeats(tmp_path: Path) -> None:
    shown: list[tuple[int, str]] = []

    def show(step: int, tag: str, picture: bytes) -> None:
        shown.append((step, tag))

    for start, steps in ((0, (10, 20, 25, 30)), (10, (20, 30))):
        recorder = DepthRecorder(tmp_path, start, show)
        for step in steps:
            recorder.record(step, look_of(BLOCK, seed=start + step))
        recorder.close()
    records = [json.loads(line) for line in (tmp_path / "depth.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [10, 20, 30]
    assert DepthLook.of_record(records[1]) == look_of(BLOCK, seed=30), "of the second run"
    assert sorted(path.name for path in (tmp_path / "depth").iterdir()) == [f"step-000000{n}0.png" for n in (1, 2, 3)]
    assert shown == [(n, "depth/weights") for n in (10, 20, 25, 30, 20, 30)]


def test_a_map_that_cannot_be_drawn_is_told_once_and_the_lines_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(look: DepthLook, title: str) -> None:
        raise ValueError("no font")

    monkeypatch.setattr(depth_recorder, "draw_map", broken)
    recorder = DepthRecorder(tmp_path, 0, lambda *_: None)
    for step in (10, 20, 30):
        recorder.record(step, look_of(BLOCK))
    recorder.close()
    told = [record for record in caplog.records if "could not be drawn" in record.message]
    assert len(told) == 1 and told[0].exc_info is not None and "no font" in str(told[0].exc_info[1])
    assert len((tmp_path / "depth.jsonl").read_text().splitlines()) == 3
