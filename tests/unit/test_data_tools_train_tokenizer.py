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


def test_a_large_corpus_is_sampled_by_its_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [f"The layer number {number} reads what layer {number * 7 % 100} wrote. " * 40 for number in range(700)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    size = sum(map(len, texts))
    models = []
    for seed in (1, 1, 2):
        arguments = ["--vocab-size", 300, "--sample-mib", 1, "--seed", seed, "--output", tmp_path / "m.model"]
        code, report = run(capsys, tmp_path / "a.jsonl", *arguments, "--overwrite")
        assert (code, report["documents"], report["text_bytes"]) == (0, 700, size)
        assert (1 << 20) - 3000 < report["sample_bytes"] <= 1 << 20
        assert report["sample_documents"] == pytest.approx(700 * report["sample_bytes"] / size, abs=3)
        assert report["sample_share"] == report["sample_bytes"] / size
        models.append((tmp_path / "m.model").read_bytes())
    assert models[0] == models[1] != models[2]


def test_the_report_says_whether_real_text_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [TEXT * 5, TEXT + "\u2581", "\u0416" + TEXT] * 5
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    arguments = ["--vocab-size", 290, "--character-coverage", 0.99, "--output", tmp_path / "m.model"]
    code, report = run(capsys, tmp_path / "a.jsonl", *arguments)
    assert code == 0
    assert (report["round_trip_texts"], report["round_trip_bytes"]) == (15, report["text_bytes"])
    assert (report["round_trip_differing"], report["round_trip_differing_with_space_sign"]) == (5, 5)
    assert 0 < report["byte_token_share"] < 0.2 and report["unknown_tokens"] == 0
    assert 1.2 < report["characters_per_token"] < report["bytes_per_token"] < 10
    assert 30 < report["pieces_used"] < report["smallest_vocabulary_size"] <= 290
