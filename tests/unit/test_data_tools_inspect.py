"""Inspecting a pair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnres_train.tokenizer.training import TrainingOptions, train_model
from data_tools.inspect import main
from data_tools.preprocess import main as preprocess

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
    arguments = ["--documents", 2, "--tokenizer", corpus / "m.model", "--verify"]
    code, report = inspect(capsys, corpus / "c", *arguments)
    assert code == 0
    assert (report["documents"], report["vocabulary_size"], report["eod_id"]) == (3, 285, 1)
    assert report["checksums"] == "verified"
    assert [shown["text"] for shown in report["first_documents"]] == TEXTS[:2]
    assert sum(shown["tokens"] for shown in report["first_documents"]) < report["tokens"]


def test_a_pair_without_manifest_is_described_by_itself(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (corpus / "c.json").unlink()
    code, report = inspect(capsys, corpus / "c", "--documents", 1)
    assert (code, report["documents"], report["manifest"]) == (0, 3, "none")
    assert report["first_documents"][0]["ids"][-1] == 1
    assert inspect(capsys, corpus / "c", "--verify")[0] == 2


def test_verifying_finds_a_changed_byte_that_sizes_do_not_show(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray((corpus / "c.bin").read_bytes())
    data[0] ^= 1
    (corpus / "c.bin").write_bytes(data)
    assert inspect(capsys, corpus / "c")[0] == 0
    code, report = inspect(capsys, corpus / "c", "--verify")
    assert code == 2 and "SHA-256" in report["problems"][0]["message"]


def test_another_tokenizer_is_refused(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (corpus / "other.model").write_bytes(train_model(TEXTS * 20, TrainingOptions(vocab_size=284)))
    code, report = inspect(capsys, corpus / "c", "--tokenizer", corpus / "other.model")
    assert code == 2 and "fingerprint" in report["problems"][0]["message"]


def test_a_pair_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = inspect(capsys, tmp_path / "c")
    assert code == 2 and "no such pair" in report["problems"][0]["message"]
