"""Training a tokenizer from files."""

from __future__ import annotations

import gzip
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from attnres_train.tokenizer.load import load_tokenizer
from data_tools.train_tokenizer import main

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize("vocab_size, message", [(50_000, "at most"), (265, "alone are")])
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


@pytest.mark.parametrize("vocab_size", [2, 259, (1 << 24) + 1, 2**31 - 1, 2**31])
def test_a_vocabulary_size_out_of_range_is_refused_with_the_range_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], vocab_size: int
) -> None:
    code, report = run(capsys, tmp_path / "absent.txt", "--vocab-size", vocab_size, "--output", tmp_path / "m.model")
    told = "is not from 260 (special pieces, bytes, a character) to 16,777,216"
    assert code == 2 and report["problems"][0]["message"] == told


def test_text_that_is_not_there_is_told_by_what_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n\n')
    (tmp_path / "b.jsonl").touch()
    code, report = run(capsys, tmp_path, "--vocab-size", 290, "--output", tmp_path / "m.model")
    told = "no document with text: 2 blank, 0 bad, files that are empty: 1"
    assert code == 2 and report["problems"][0]["message"] == told


def test_a_signal_ends_the_training_at_once(tmp_path: Path) -> None:
    chance = random.Random(1)
    words = ("".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 12))) for _ in range(300_000))
    (tmp_path / "a.txt").write_text(" ".join(words))
    arguments = [tmp_path / "a.txt", "--vocab-size", "100000", "--output", tmp_path / "m.model"]
    tool = [sys.executable, "-m", "data_tools.train_tokenizer", *arguments]
    process = subprocess.Popen(tool, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (child := children.read_text().split()):
        time.sleep(0.05)
    time.sleep(0.5)  # into the library
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[1] == "interrupted; nothing was published\n"
    assert time.monotonic() - started < 15  # on a quiet machine well below 1; the training takes a minute
    assert process.returncode == 1 and not Path(f"/proc/{child[0]}").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_vocabulary_that_characters_crowd_comes_with_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(1)
    common, rare = [chr(0x4E00 + i) for i in range(20)], [chr(0x5E00 + i) for i in range(300)]
    texts = ["".join(chance.choices(common, k=300)) + rare[i] for i in range(300)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    arguments = [tmp_path / "a.jsonl", "--output", tmp_path / "m.model", "--vocab-size", 700]
    code, report = run(capsys, *arguments)
    (advice,) = report["warnings"]
    assert code == 0 and list(report)[-1] == "warnings"
    assert advice.startswith("320 of 700 pieces are single characters, 121 are longer; --character-coverage 0.995 ")
    assert "would keep about 20 characters" in advice
    code, report = run(capsys, *arguments, "--overwrite", "--character-coverage", 0.995)
    assert code == 0 and report["warnings"] == []
