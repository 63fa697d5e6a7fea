"""Inspecting a pair."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnres_train.data.indexed import IndexedReader
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.tokenizer.training import TrainingOptions, train_model
from data_tools.inspect import main
from data_tools.preprocess import main as preprocess
from data_tools.statistics import LengthBin, histogram_lines, length_histogram

TEXTS = ["The first document.\n", "The second document is a little longer.", "The third."]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "m.model").write_bytes(train_model(TEXTS * 20, TrainingOptions(vocab_size=285)))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    arguments = ["--tokenizer", str(tmp_path / "m.model"), "--output", str(tmp_path / "c"), "--workers", "1"]
    assert preprocess([str(tmp_path / "a.jsonl"), *arguments]) == 0
    return tmp_path


def inspect(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_pair_is_described_and_its_documents_are_shown_as_text(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--documents", 2, "--tokenizer", corpus / "m.model"]
    code, report = inspect(capsys, corpus / "c", *arguments)
    assert code == 0
    assert (report["documents"], report["vocabulary_size"], report["eod_id"]) == (3, 285, 1)
    assert [shown["text"] for shown in report["shown_documents"]] == TEXTS[:2]
    assert sum(shown["tokens"] for shown in report["shown_documents"]) < report["tokens"]


def test_a_pair_without_manifest_is_described_by_itself(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (corpus / "c.json").unlink()
    code, report = inspect(capsys, corpus / "c", "--documents", 1)
    assert (code, report["documents"], report["manifest"]) == (0, 3, "none")
    assert report["shown_documents"][0]["ids"][-1] == 1


def test_statistics_are_those_of_the_tokens(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with IndexedWriter(corpus / "s", 100) as writer:
        writer.add_documents(np.array([3, 3, 5, 5, 3, 3, 5, 9]), np.array([2, 1, 1, 2, 0, 0, 2]))
        writer.finish()
        writer.publish()
    code, report = inspect(capsys, corpus / "s", "--statistics", "--documents", 2, "--from", 5)
    shares = np.array([4, 3, 1]) / 8
    assert code == 0
    assert report["unigram_entropy_nats"] == pytest.approx(-(shares * np.log(shares)).sum())
    # Of [3 3], [5], [5], [3 3], [], [], [5 9] three come again.
    assert (report["pieces_used"], report["repeated_documents"]) == (3, 3)
    assert [shown["ids"] for shown in report["shown_documents"]] == [[], [5, 9]]
    assert report["lengths"] == [
        {"least": 0, "most": 0, "documents": 2},
        {"least": 1, "most": 1, "documents": 2},
        {"least": 2, "most": 3, "documents": 3},
    ]


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60))
def test_the_histogram_counts_every_document_in_the_bin_of_its_length(lengths: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with IndexedWriter(f"{folder}/c", 2) as writer:
            writer.add_documents(np.zeros(sum(lengths), np.int64), np.array(lengths))
            writer.finish()
            writer.publish()
        bins = length_histogram(IndexedReader(f"{folder}/c"))
    for one in bins:
        assert one.documents == sum(one.least <= length <= one.most for length in lengths)
    assert sum(one.documents for one in bins) == len(lengths)


def test_the_histogram_is_drawn_and_no_bin_with_documents_is_empty() -> None:
    lines = list(histogram_lines([LengthBin(1, 1, 1), LengthBin(2, 3, 0), LengthBin(4, 7, 1000)], width=20))
    assert [line.count("#") for line in lines] == [1, 0, 20]


def test_another_tokenizer_is_refused(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (corpus / "other.model").write_bytes(train_model(TEXTS * 20, TrainingOptions(vocab_size=284)))
    code, report = inspect(capsys, corpus / "c", "--tokenizer", corpus / "other.model")
    assert code == 2 and "fingerprint" in report["problems"][0]["message"]


def test_a_pair_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = inspect(capsys, tmp_path / "c")
    assert code == 2 and "no such pair" in report["problems"][0]["message"]
