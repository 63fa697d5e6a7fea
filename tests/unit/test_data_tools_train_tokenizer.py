"""Training a tokenizer from files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from attnres_train.tokenizer.load import load_tokenizer
from data_tools.train_tokenizer import main

TEXT = "Each layer reads what the layers before it wrote, and writes what the next will read.\n"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    code = main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_files_of_all_kinds_give_one_model_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text(TEXT * 20)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(json.dumps({"body": TEXT + "\u2581"}).encode()))
    (tmp_path / "c.jsonl").write_text(json.dumps({"body": ""}) + "\nnot json\n")
    arguments = [
        tmp_path,
        "--vocab-size",
        290,
        "--output",
        tmp_path / "out" / "m.model",
        "--text-key",
        "body",
    ]
    code, report = run(capsys, *arguments, "--bad-records", "skip")
    assert code == 0
    tokenizer = load_tokenizer(tmp_path / "out" / "m.model")
    assert (report["fingerprint"], report["vocabulary_size"]) == (tokenizer.fingerprint, 290)
    assert (report["documents"], report["blank_documents"], report["skipped_records"]) == (2, 1, 1)
    assert (report["eod_id"], report["space_sign_characters"]) == (1, 1)
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_an_existing_model_is_refused_before_training_unless_it_may_be_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text(TEXT * 20)
    (tmp_path / "m.model").write_bytes(b"precious")
    arguments = [tmp_path / "a.txt", "--vocab-size", 290, "--output", tmp_path / "m.model"]
    code, report = run(capsys, *arguments)
    assert code == 2 and "already there" in report["problems"][0]["message"]
    assert (tmp_path / "m.model").read_bytes() == b"precious"
    assert run(capsys, *arguments, "--overwrite")[0] == 0
    assert load_tokenizer(tmp_path / "m.model").vocab_size == 290


def test_a_bad_record_stops_by_default_and_leaves_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": TEXT}) + "\n{\n")
    code, report = run(capsys, tmp_path / "a.jsonl", "--vocab-size", 290, "--output", tmp_path / "m.model")
    assert code == 2 and report["problems"][0]["key"].endswith("a.jsonl:2")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("vocab_size, message", [(50_000, "at most"), (200, "alone are")])
def test_an_impossible_vocabulary_size_is_refused_with_the_possible_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], vocab_size: int, message: str
) -> None:
    (tmp_path / "a.txt").write_text(TEXT * 20)
    code, report = run(capsys, tmp_path / "a.txt", "--vocab-size", vocab_size, "--output", tmp_path / "m.model")
    assert code == 2 and message in report["problems"][0]["message"]
