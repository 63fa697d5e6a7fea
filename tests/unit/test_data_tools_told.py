"""What preprocessing does not store, or a tokenizer does not keep, is told: how much, why, and where."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.tokenizer.loss import loss_in_words, lost_characters
from attnres_train.tokenizer.training import TrainingOptions, train_model
from data_tools.command import report_lines
from data_tools.inspect import main as inspect
from data_tools.inspect import show
from data_tools.preprocess import main
from data_tools.verify import main as verify
from tests.unit.config_files import write as write_config
from tests.unit.tokenizer_models import bare_model

ROOT = Path(__file__).parents[2]
TEXTS = ["words and\nwords", "words", "more words"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("m.model").write_bytes(train_model(TEXTS * 20, TrainingOptions(vocab_size=275)))
    Path("lossy.model").write_bytes(bare_model())
    return tmp_path


def write(name: str, records: list[Any]) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records))


def preprocess(
    capsys: pytest.CaptureFixture[str], *arguments: str, model: str = "m.model"
) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main([*arguments, "--tokenizer", model, "--output", "c", "--workers", "1", "--json"])
    return code, json.loads(capsys.readouterr().out)


def problem(report: dict[str, Any]) -> str:
    return "{key}: {message}".format(**report["problems"][0])


def test_a_metadata_key_that_no_document_has_is_refused_with_those_that_are_there(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("a.jsonl", [{"text": text, "url": "u"} for text in ["", *TEXTS]])
    code, report = preprocess(capsys, "a.jsonl", "--metadata", "ulr", "--metadata", "url")
    assert code == 2 and problem(report) == "--metadata: no document has 'ulr'; the first one has: text, url"
    assert sorted(path.name for path in here.iterdir()) == ["a.jsonl", "lossy.model", "m.model"]


def test_documents_without_a_metadata_key_are_counted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("lang=de/a.jsonl", [{"text": "a", "url": "u"}, {"text": "b"}, {"text": "c", "url": None}])
    code, report = preprocess(capsys, "lang=de", "--metadata", "url", "--metadata", "lang")
    assert code == 0 and report["documents_without"] == [{"key": "url", "documents": 1}]
    lines = [json.loads(line)["metadata"] for line in Path("c.metadata.ndjson").read_text().splitlines()]
    assert lines == [{"url": url, "lang": "de"} for url in ("u", None, None)]


def test_verify_judges_what_preprocessing_judged(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.jsonl").write_text('{"text": "a", "id": 1}\n{"text": "b", "id": 2, "id": 3}\n')
    code, report = preprocess(capsys, "a.jsonl", "--metadata", "id", "--bad-records", "skip")
    assert (code, report["documents"], report["skipped_records"]) == (0, 1, 1)
    assert verify(["c", "--tokenizer", "m.model", "--text", "--workers", "1"]) == 0


def test_a_key_that_the_first_shard_lacks_is_warned_of_early(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_tools.pieces.SMALLEST_SHARD_BYTES", 10)
    write("a.jsonl", [{"text": "a"}])
    write("b.jsonl", [{"text": "b", "url": "u"}])
    assert main(["a.jsonl", "b.jsonl", *"--tokenizer m.model --output c --workers 1 --metadata url".split()]) == 0
    assert "no document so far has 'url', which --metadata asks for" in capsys.readouterr().err


def test_blank_documents_and_empty_files_are_located_also_behind_a_cut(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_tools.pieces.SMALLEST_SHARD_BYTES", 10)
    write("a.jsonl", [{"text": text} for text in ("a", "", "b", " \n", "c")])
    Path("empty.jsonl").touch()
    Path("blank.txt").touch()
    Path("bad.txt").write_bytes(b"\xff")
    code, report = preprocess(capsys, "a.jsonl", "empty.jsonl", "blank.txt", "bad.txt", "--bad-records", "skip")
    assert code == 0 and report["shards"] > 3
    places = [("a.jsonl", 2), ("a.jsonl", 4), ("blank.txt", 1)]
    assert report["blank"] == [{"file": file, "line": line} for file, line in places]
    assert (report["blank_documents"], report["empty_files"]) == (3, ["empty.jsonl"])
    assert "  file bad.txt, kind not UTF-8, reason not UTF-8: byte 0 is 0xff, records 1" in list(report_lines(report))


def test_a_loss_is_the_last_word_and_can_be_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("a.jsonl", [{"text": "a banana"}, {"text": "\u0416 an\nana\n"}, {"text": "bands"}])
    code, report = preprocess(capsys, "a.jsonl", model="lossy.model")
    told = "characters that do not come back from the tokens: 3 (13.64%), unknown tokens: 1"
    warning = f"{told}; most often '\\n' (2), '\u0416' (1); --no-loss refuses that"
    assert code == 0 and (report["lost_characters"], report["characters"]) == (3, 22)
    assert list(report)[-1] == "warnings" and report["warnings"] == [warning]
    assert list(report_lines(report))[-1] == f"WARNING: {warning}"
    again = preprocess(capsys, "a.jsonl", model="lossy.model")[1]
    assert again["status"] == "already done" and again["warnings"] == [f"{told}; --no-loss refuses that"]
    assert inspect(["c", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(show(found))[-1] == f"WARNING: {told}"
    for more, place in (([], "lossy.model"), (["--overwrite"], "a.jsonl:2")):
        code, report = preprocess(capsys, "a.jsonl", "--no-loss", *more, model="lossy.model")
        assert code == 2 and problem(report).startswith(f"{place}: --no-loss: characters that do not come back")


def test_a_tokenizer_that_drops_what_it_does_not_know_is_found_out(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = Library(models.BPE({"a": 0, "b": 1, "<end>": 2}, []))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_special_tokens(["<end>"])
    library.save("t.json")
    write("a.jsonl", [{"text": "abba"}, {"text": "abc"}])
    code, report = preprocess(capsys, "a.jsonl", "--eod-piece", "<end>", model="t.json")
    assert code == 0 and (report["unknown_tokens"], report["lost_characters"]) == (0, 1)
    assert report["warnings"][0].startswith(
        "characters that do not come back from the tokens: 1 (14.29%); most often 'c' (1)"
    )


def test_a_tokenizer_that_adds_to_the_text_is_found_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = Library(models.BPE({letter: i for i, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<end>"])
    library.save("t.json")
    write("a.jsonl", [{"text": " hello"}, {"text": "hello world"}, {"text": "world"}])
    code, report = preprocess(capsys, "a.jsonl", "--eod-piece", "<end>", model="t.json")
    told = "documents that come back with characters added or moved: 2"
    assert code == 0 and report["warnings"] == [f"{told}; --no-loss refuses that"]
    assert (report["lost_characters"], report["altered_documents"]) == (0, 2)
    for more, place in (([], "t.json"), (["--overwrite"], "a.jsonl:2")):
        code, report = preprocess(capsys, "a.jsonl", "--eod-piece", "<end>", "--no-loss", *more, model="t.json")
        assert code == 2 and problem(report).startswith(f"{place}: --no-loss: documents that come back with")


def test_nothing_is_said_where_nothing_is_lost(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("a.jsonl", [{"text": "\u0416 \u2603\n"}])
    code, report = preprocess(capsys, "a.jsonl", "--no-loss")
    assert (code, report["warnings"], report["lost_characters"]) == (0, [], 0)
    assert loss_in_words({}) is None and lost_characters("same", "same") == Counter()


def test_a_share_too_small_to_show_is_not_shown_as_none() -> None:
    told = loss_in_words({"lost_characters": 3, "characters": 10**9})
    assert told == "characters that do not come back from the tokens: 3 (less than 0.01%)"
    assert loss_in_words({"unknown_tokens": 2}) == "unknown tokens: 2"


def test_check_tells_of_a_loss_in_a_corpus(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("a.jsonl", [{"text": "an\nana " * 30}])
    assert preprocess(capsys, "a.jsonl", model="lossy.model")[0] == 0
    config = write_config(here)
    config.write_text(config.read_text().replace("vocab_size = 320", 'model = "lossy.model"') + '[data]\ntrain = "c"\n')
    command = [sys.executable, "-m", "attnres_train.entry", "check", str(config)]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "note: c: characters that do not come back from the tokens: 30 (14.29%)\n" in done.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [(["", "--json"], "PREFIX: is empty"), (["c", "--from", "3", "--json"], "--from: says where --documents begins")],
)
def test_inspect_refuses_what_says_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with IndexedWriter("c", vocabulary_size=9) as writer:
        writer.add_documents(np.arange(5), np.array([5]))
        writer.finish()
        writer.publish()
    assert inspect(arguments) == 2
    assert problem(json.loads(capsys.readouterr().out)).startswith(message)
