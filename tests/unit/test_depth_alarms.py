"""Which looks at the depth raise alarms, and how often these are told."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from attnres_train.depth.layout import DepthLayout
from attnres_train.observe import record_lines
from attnres_train.observe.depth_alarms import DepthAlarms
from attnres_train.observe.depth_look import DepthLook
from attnres_train.observe.depth_recorder import DepthRecorder
from tests.unit.test_depth_look import BLOCK, FULL, STANDARD, look_of, with_reader


def told(look: DepthLook, partials: Mapping[str, list[float]] | None = None) -> list[str]:
    """What is told of a look after others with these partials."""
    return DepthAlarms(dict(partials or {})).new(look)


def test_a_healthy_look_alarms_nobody() -> None:
    for layout in (BLOCK, FULL, STANDARD):
        assert told(look_of(layout), {"01-mlp": [2.0, 2.1, 1.9]}) == []


def test_a_query_on_one_source_has_collapsed() -> None:
    look = with_reader(look_of(BLOCK), 4, weights=(0.005, 0.99, 0.005))
    assert told(look) == ["02-attention: its query has collapsed on source 1, 99.0% of the weight of 3"]
    for weights, of in (((0.99, 0.005, 0.005), "the embedding"), ((0.005, 0.005, 0.99), "the partial")):
        (words,) = told(with_reader(look, 4, weights=weights))
        assert f"collapsed on {of}," in words
    assert told(with_reader(look_of(BLOCK), 1, weights=(0.999, 0.001))) == [], "of two, one may do"


def test_a_source_that_no_reader_looks_at_is_dead() -> None:
    look = look_of(BLOCK)
    for index, reader in enumerate(look.readers):
        if 1 in reader.sources and reader.weights is not None:
            weights = list(reader.weights)
            weights[1] = 0.001
            look = with_reader(look, index, weights=tuple(w / sum(weights) for w in weights))
    assert told(look) == ["source 1 is dead: none of its 6 readers gives it 1% of an equal share"]
    one_looks = with_reader(look, 8, weights=look_of(BLOCK).readers[8].weights)
    assert told(one_looks) == []
    watch = DepthAlarms()
    assert [len(watch.new(each)) for each in (look, one_looks, look, look)] == [1, 0, 1, 0], "one that looks is enough"


def test_a_partial_that_outgrows_its_past_is_told_of_once_and_again_after_it_was_well() -> None:
    steady, huge = look_of(BLOCK), with_reader(look_of(BLOCK), 4, partial_rms=30.0)
    watch = DepthAlarms()
    assert [watch.new(steady) for _ in range(3)] == [[], [], []]
    assert watch.new(huge) == ["02-attention: the partial grows, rms 30 after 2 in earlier looks"]
    assert watch.new(with_reader(steady, 4, partial_rms=31.0)) == [], "it lasts"
    assert watch.new(steady) == []
    assert len(watch.new(with_reader(steady, 4, partial_rms=40.0))) == 1
    assert DepthAlarms().new(huge) == [], "there is no past"


def test_sizes_that_are_not_finite_are_named() -> None:
    look = with_reader(look_of(STANDARD), 2, output_rms=float("inf"), gradient_rms=float("nan"))
    assert told(look) == ["not finite in 1 of 9 readers, first 01-attention: output_rms, gradient_rms"]
    everywhere = look
    for index in range(3, 9):
        everywhere = with_reader(everywhere, index, input_rms=float("nan"))
    assert told(everywhere) == ["not finite in 7 of 9 readers, first 01-attention: output_rms, gradient_rms"]


def with_partials(look: DepthLook, factor: float) -> DepthLook:
    """Every partial so many times as large."""
    return DepthLook(
        tuple(r if r.partial_rms is None else replace(r, partial_rms=r.partial_rms * factor) for r in look.readers)
    )


def test_partials_that_stay_large_are_told_once_whatever_their_noise() -> None:
    draws, watch, steady = random.Random(1), DepthAlarms(), look_of(DepthLayout(24, "block", 3))
    lines = [watch.new(with_partials(steady, draws.uniform(0.95, 1.05))) for _ in range(5)]
    lines += [watch.new(with_partials(steady, 30 * draws.uniform(0.95, 1.05))) for _ in range(60)]
    spoken = [words for of_look in lines for words in of_look]
    (words,) = spoken
    assert words.startswith("24 alike, first 00-attention: the partial grows, rms ")
    assert words.endswith(" in earlier looks; then 00-mlp, 01-attention, 01-mlp and 20 more")


def test_a_partial_that_was_no_number_leaves_no_hole_in_what_is_usual() -> None:
    watch, steady = DepthAlarms(), look_of(BLOCK)
    for _ in range(4):
        watch.new(steady)
    nothing = float("nan")
    assert watch.new(with_reader(steady, 4, partial_rms=30.0)) != []
    (words,) = watch.new(with_reader(steady, 4, partial_rms=nothing))
    assert words == "not finite in 1 of 9 readers, first 02-attention: partial_rms"
    assert watch.new(with_reader(steady, 4, partial_rms=31.0)) == [], "told before, and it was not over"
    assert all(nothing not in sizes and len(sizes) > 4 for sizes in watch.partials.values())


def test_a_query_about_the_limit_is_told_once_and_anew_after_it_used_several_sources() -> None:
    def looks_at_one(share: float) -> DepthLook:
        rest = (1 - share) / 2
        return with_reader(look_of(BLOCK), 4, weights=(rest, share, rest))

    watch = DepthAlarms()
    shares = [0.97, 0.985, 0.975, 0.99, 0.92, 0.985, 0.5, 0.95, 0.985, 0.97]
    assert [len(watch.new(looks_at_one(share))) for share in shares] == [0, 1, 0, 0, 0, 0, 0, 0, 1, 0]


def test_a_dead_source_is_told_anew_after_it_was_clearly_alive() -> None:
    def gives(share: float) -> DepthLook:
        look = look_of(BLOCK)
        for index, reader in enumerate(look.readers):
            if 1 in reader.sources and reader.weights is not None:
                rest = (1 - share / len(reader.weights)) / (len(reader.weights) - 1)
                weights = [rest] * len(reader.weights)
                weights[1] = share / len(reader.weights)
                look = with_reader(look, index, weights=tuple(weights))
        return look

    watch = DepthAlarms()
    shares = [0.015, 0.009, 0.015, 0.009, 0.5, 0.015, 0.009]
    assert [len(watch.new(gives(share))) for share in shares] == [0, 1, 0, 0, 0, 0, 1]


def test_a_share_counts_the_partial_among_what_is_read() -> None:
    """One reader of source 1 and a partial gives it 1.1 % of an equal share of three: little, and not nothing."""
    look = look_of(BLOCK)
    for index, reader in enumerate(look.readers):
        if 1 in reader.sources and reader.weights is not None:
            given = 0.011 if index == 4 else 0.001
            rest = (1 - given / len(reader.weights)) / (len(reader.weights) - 1)
            weights = [rest] * len(reader.weights)
            weights[1] = given / len(reader.weights)
            look = with_reader(look, index, weights=tuple(weights))
    assert look.readers[4].partial and told(look) == []
    assert len(told(with_reader(look, 4, weights=(0.5, 0.0033, 0.4967)))) == 1, "of 0.99 % it is dead"


def test_growth_is_held_against_the_median_and_what_shrinks_again_does_not_grow() -> None:
    huge = with_reader(look_of(BLOCK), 4, partial_rms=30.0)
    words = "02-attention: the partial grows, rms 30 after 2 in earlier looks"
    assert told(huge, {"02-attention": [2.0, 2.0, 29.0, 2.0, 2.0]}) == [words], "one look is not what is usual"
    assert told(huge, {"02-attention": [2.0, 2.0, 2.0, 31.0]}) == []
    assert told(huge, {"02-attention": [2.0, 2.0]}) == [], "of two looks nobody knows"


def test_what_is_usual_is_that_of_the_newest_looks() -> None:
    watch = DepthAlarms()
    for size in [1.0] * 60 + [8.0] * 60:
        assert watch.new(with_reader(look_of(BLOCK), 4, partial_rms=size)) == []
    assert watch.new(with_reader(look_of(BLOCK), 4, partial_rms=30.0)) == []


def test_alarms_know_the_looks_before_a_resume(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run that restarts every second look: growth is seen, and told by one of its processes alone."""
    steady = look_of(BLOCK)
    looks = [steady, steady, steady, steady, with_reader(steady, 4, partial_rms=30.0)]
    looks += [with_reader(steady, 4, partial_rms=31.0 + n) for n in range(3)]
    for start in range(0, len(looks), 2):
        recorder = DepthRecorder(tmp_path, start, lambda *_: None)
        for step in (start + 1, start + 2):
            recorder.record(step, looks[step - 1])
        recorder.close()
        with open(tmp_path / "depth.jsonl", "ab") as file:
            file.write(b'{"step": 1, "readers": [{}]}\n{"step": 2, "rea')
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == ["step 5  depth: 02-attention: the partial grows, rms 30 after 2 in earlier looks"]


def test_the_last_lines_of_a_file_are_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines"
    for block in (1, 3, 7, 64):
        monkeypatch.setattr(record_lines, "BLOCK_BYTES", block)
        for text in (b"", b"\n", b"a", b"a\n", b"one\ntwo\n\nthree\nfour\n", b"one\ntwo\nthree\ncut"):
            path.write_bytes(text)
            whole = [line for line in text.split(b"\n") if line]
            assert record_lines.last_lines(path, 2) == whole[-2:]
            assert record_lines.last_lines(path, 9) == whole
