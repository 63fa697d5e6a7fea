"""Preprocessing from end to end: what is stored, what is reported, what is refused, and kills."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from sentencepiece import SentencePieceTrainer

from attnres_train.data.indexed import IndexedReader
from attnres_train.data.manifest import read_manifest
from attnres_train.tokenizer.load import load_tokenizer
from attnres_train.tokenizer.training import TrainingOptions, train_model
from data_tools.merge import main as merge
from data_tools.preprocess import main

ROOT = Path(__file__).parents[2]
TEXTS = [f"Document {i} is about depth {'and depth ' * (i % 7)}and attention.\n" for i in range(1, 11)]
Preprocess = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "m.model"
    path.write_bytes(train_model(TEXTS * 20, TrainingOptions(vocab_size=290)))
    return path


@pytest.fixture
def preprocess(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> Preprocess:
    """Runs the tool on files below `tmp_path`, into `tmp_path/out/c`; gives exit code and JSON report."""

    def run(*arguments: str, tokenizer: Path = model) -> tuple[int, dict[str, Any]]:
        output = str(tmp_path / "out" / "c")
        inputs = [str(tmp_path / argument) if "." in argument else argument for argument in arguments]
        code = main([*inputs, "--tokenizer", str(tokenizer), "--output", output, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines))


def write_texts(path: Path, texts: list[str]) -> None:
    write(path, [json.dumps({"text": text}) for text in texts])


def stored(tmp_path: Path) -> list[list[int]]:
    reader = IndexedReader(tmp_path / "out" / "c")
    return [reader.document(i).tolist() for i in range(reader.num_documents)]


def outputs(tmp_path: Path) -> list[str]:
    folder = tmp_path / "out"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def facts(report: dict[str, Any]) -> str:
    return "\n".join(f"{problem['key']}: {problem['message']}" for problem in report["problems"])


def test_documents_are_stored_in_order_each_with_one_eod_at_its_end(
    tmp_path: Path, model: Path, preprocess: Preprocess
) -> None:
    write_texts(tmp_path / "b.jsonl", TEXTS[:4])
    write_texts(tmp_path / "a.jsonl", TEXTS[4:])
    code, report = preprocess("b.jsonl", "a.jsonl", "--workers", "2")
    tokenizer = load_tokenizer(model)
    documents = stored(tmp_path)
    assert code == 0
    assert documents == [[*tokenizer.encode(text), tokenizer.eod_id] for text in TEXTS]
    assert [document.count(1) for document in documents] == [1] * 10
    assert report["documents"] == 10
    assert report["tokens"] == sum(len(tokenizer.encode(text)) for text in TEXTS) + 10
    assert report["text_bytes"] == sum(map(len, TEXTS))
    assert outputs(tmp_path) == ["c.bin", "c.idx", "c.json"]


def test_without_eod_the_lengths_are_those_of_the_texts(tmp_path: Path, model: Path, preprocess: Preprocess) -> None:
    write_texts(tmp_path / "a.jsonl", TEXTS[:3])
    assert preprocess("a.jsonl", "--no-eod")[0] == 0
    assert stored(tmp_path) == [load_tokenizer(model).encode(text) for text in TEXTS[:3]]
    manifest = read_manifest(tmp_path / "out" / "c")
    assert manifest is not None and manifest.eod_id is None


def test_a_model_without_an_end_piece_is_refused_before_the_corpus_is_looked_at(
    tmp_path: Path, preprocess: Preprocess
) -> None:
    data = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=data,
        vocab_size=30,
        hard_vocab_limit=False,
        eos_id=-1,
        control_symbols=["<end>"],
        minloglevel=2,
    )
    (tmp_path / "bare.model").write_bytes(data.getvalue())
    code, report = preprocess("absent.jsonl", tokenizer=tmp_path / "bare.model")
    assert code == 2 and "no end-of-document piece" in facts(report)
    assert "--eod-piece" in report["problems"][0]["remedy"]
    write_texts(tmp_path / "a.jsonl", TEXTS)
    code, report = preprocess("a.jsonl", "--eod-piece", "<end>", tokenizer=tmp_path / "bare.model")
    assert code == 0
    assert {document[-1] for document in stored(tmp_path)} == {report["eod_id"]}


def test_literal_markers_in_the_text_never_give_special_ids(
    tmp_path: Path, model: Path, preprocess: Preprocess
) -> None:
    texts = ["before</s>after <unk> <pad> <s>", "</s>"]
    write_texts(tmp_path / "a.jsonl", texts)
    assert preprocess("a.jsonl")[0] == 0
    tokenizer = load_tokenizer(model)
    documents = stored(tmp_path)
    assert [document.index(1) for document in documents] == [len(document) - 1 for document in documents]
    assert not any({0, 2} & set(document) for document in documents)
    assert [tokenizer.decode(document) for document in documents] == texts


BAD_LINES = {1: "}", 500: "plain words", 1000: '{"text": "unclosed'}


def write_with_bad_lines(path: Path) -> None:
    lines = [json.dumps({"text": f"number {i}"}) for i in range(1, 1001)]
    for number, line in BAD_LINES.items():
        lines[number - 1] = line
    write(path, lines)


def test_a_bad_line_stops_by_default_naming_file_line_and_reason(tmp_path: Path, preprocess: Preprocess) -> None:
    write_with_bad_lines(tmp_path / "a.jsonl")
    code, report = preprocess("a.jsonl", "--workers", "2")
    assert code == 2
    assert f"{tmp_path / 'a.jsonl'}:1: not JSON" in facts(report)
    assert outputs(tmp_path) == []


def test_bad_lines_are_skipped_on_request_and_all_reported(tmp_path: Path, model: Path, preprocess: Preprocess) -> None:
    write_with_bad_lines(tmp_path / "a.jsonl")
    code, report = preprocess("a.jsonl", "--workers", "2", "--bad-records", "skip")
    assert (code, report["documents"], report["skipped_records"]) == (0, 997, 3)
    assert [record["line"] for record in report["skipped"]] == [1, 500, 1000]
    decode = load_tokenizer(model).decode
    wanted = [f"number {i}" for i in range(1, 1001) if i not in BAD_LINES]
    assert [decode(document) for document in stored(tmp_path)] == wanted


def test_more_bad_lines_than_allowed_are_refused_at_the_first_too_many(tmp_path: Path, preprocess: Preprocess) -> None:
    write_with_bad_lines(tmp_path / "a.jsonl")
    code, report = preprocess("a.jsonl", "--workers", "2", "--bad-records", "skip", "--max-bad", "2")
    assert code == 2 and "a.jsonl:1000" in facts(report) and "bad record 3" in facts(report)
    assert outputs(tmp_path) == []


@pytest.mark.parametrize(
    "argument, message",
    [
        ("*.jsonl.gz", "matches no file"),
        ("b.csv", "unknown kind"),
        ("empty.jsonl", "no document with text: 0 blank, 0 bad, files that are empty: 1"),
        ("blank.jsonl", "no document with text: 10 blank, 0 bad"),
    ],
)
def test_nothing_to_read_is_refused_and_leaves_no_output(
    tmp_path: Path, preprocess: Preprocess, argument: str, message: str
) -> None:
    (tmp_path / "b.csv").write_text("words")
    (tmp_path / "empty.jsonl").touch()
    write_texts(tmp_path / "blank.jsonl", ["", " \n"] * 5)
    code, report = preprocess(argument)
    assert code == 2 and message in facts(report)
    assert outputs(tmp_path) == []


def test_a_blank_first_document_is_left_out_and_counted(tmp_path: Path, preprocess: Preprocess) -> None:
    write_texts(tmp_path / "a.jsonl", ["", *TEXTS[1:]])
    code, report = preprocess("a.jsonl")
    assert (code, report["documents"], report["blank_documents"]) == (0, 9, 1)
    assert len(stored(tmp_path)) == 9


def test_the_characters_that_do_not_come_back_are_counted(tmp_path: Path, preprocess: Preprocess) -> None:
    write_texts(tmp_path / "a.jsonl", ["two \u2581 signs \u2581", "none"])
    _, report = preprocess("a.jsonl")
    assert (report["space_sign_characters"], report["unknown_tokens"], report["tokenizer_keeps_text"]) == (
        2,
        0,
        True,
    )


@pytest.fixture(scope="session")
def five_thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents for eleven shards of SHARD_BYTES."""
    path = tmp_path_factory.mktemp("corpus") / "many.jsonl"
    write_texts(path, [f"{i} words {i * i} " * (10 + i % 25) for i in range(5000)])
    return path


def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path, model: Path, five_thousand: Path) -> None:
    contents = set()
    for workers in ("1", "3"):
        prefix = tmp_path / workers
        arguments = [
            str(five_thousand),
            "--tokenizer",
            str(model),
            "--output",
            str(prefix),
            "--workers",
            workers,
        ]
        assert main(arguments) == 0
        contents.add(tuple(Path(f"{prefix}{ending}").read_bytes() for ending in (".bin", ".idx")))
    assert len(contents) == 1


def test_a_second_run_finds_the_work_done_and_changes_nothing(
    tmp_path: Path, model: Path, preprocess: Preprocess
) -> None:
    write_texts(tmp_path / "a.jsonl", TEXTS)
    _, first = preprocess("a.jsonl")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    os.utime(tmp_path / "a.jsonl")
    code, second = preprocess("a.jsonl", "--workers", "2")
    assert (code, second["status"], second["tokens"]) == (0, "already done", first["tokens"])
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("change", ["inputs", "options", "end-of-document piece", "tokenizer"])
def test_existing_output_of_other_origin_is_refused_naming_the_difference(
    tmp_path: Path, preprocess: Preprocess, change: str
) -> None:
    write_texts(tmp_path / "a.jsonl", TEXTS)
    assert preprocess("a.jsonl")[0] == 0
    before = (tmp_path / "out" / "c.bin").read_bytes()
    extra: list[str] = []
    keywords = {}
    if change == "inputs":
        write_texts(tmp_path / "a.jsonl", TEXTS[1:])
    elif change == "options":
        extra = ["--bad-records", "skip"]
    elif change == "end-of-document piece":
        extra = ["--no-eod"]
    else:
        (tmp_path / "other.model").write_bytes(train_model(TEXTS, TrainingOptions(vocab_size=289)))
        keywords = {"tokenizer": tmp_path / "other.model"}
    code, report = preprocess("a.jsonl", *extra, **keywords)
    assert code == 2 and f"made with other {change}" in facts(report)
    assert (tmp_path / "out" / "c.bin").read_bytes() == before
    code, report = preprocess("a.jsonl", "--overwrite", *extra, **keywords)
    assert (code, report["status"]) == (0, "done")


def test_a_damaged_pair_is_not_taken_for_done(tmp_path: Path, preprocess: Preprocess) -> None:
    write_texts(tmp_path / "a.jsonl", TEXTS)
    assert preprocess("a.jsonl")[0] == 0
    path = tmp_path / "out" / "c.bin"
    path.write_bytes(path.read_bytes()[:-4])
    code, report = preprocess("a.jsonl")
    assert code == 2 and "already there" in facts(report)


SHARD_BYTES = 200_000
SLOWLY = f"""
import os, sys, time
from data_tools import encode, pieces
from data_tools.preprocess import main
pieces.SMALLEST_SHARD_BYTES = {SHARD_BYTES}
at_once = encode.ShardEncoder.__call__
go = os.path.join(os.path.dirname(sys.argv[sys.argv.index("--output") + 1]), "go")
first = os.getpid()
def slowly(self, shard, advance):
    while shard.pieces[0].start > 0 and not os.path.exists(go) and os.getppid() == first:
        time.sleep(0.01)
    return at_once(self, shard, advance)
encode.ShardEncoder.__call__ = slowly
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_tools.pieces.SMALLEST_SHARD_BYTES", SHARD_BYTES)


def start(five_thousand: Path, model: Path, prefix: Path) -> subprocess.Popen[str]:
    """The tool in a process of its own, once its first shard is finished; a file `go` beside `prefix` lets it on."""
    arguments = [str(five_thousand), "--tokenizer", str(model), "--output", str(prefix), "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWLY, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not list(Path(f"{prefix}.work").glob("*.json")):
        time.sleep(0.001)
    assert process.poll() is None, "finished before it could be killed"
    return process


def children(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def ended(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "State:\tZ" in status.read_text()


def published(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".idx", ".json"))


@pytest.mark.usefixtures("small_shards")
def test_a_killed_run_publishes_nothing_and_the_next_goes_on_from_its_shards(
    tmp_path: Path, model: Path, five_thousand: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    undisturbed = [str(five_thousand), "--tokenizer", str(model), "--json", "--output", str(tmp_path / "whole")]
    assert main(undisturbed) == 0
    shards = json.loads(capsys.readouterr().out)["shards"]
    process = start(five_thousand, model, tmp_path / "c")
    workers = children(process)
    process.kill()
    process.communicate()
    assert len(workers) == 2
    assert published(tmp_path) == ["whole.bin", "whole.idx", "whole.json"]
    deadline = time.monotonic() + 60
    while not all(map(ended, workers)):
        assert time.monotonic() < deadline, "workers outlive the killed run"
        time.sleep(0.01)
    assert main([*undisturbed[:-1], str(tmp_path / "c")]) == 0
    assert 1 <= json.loads(capsys.readouterr().out)["shards_resumed"] < shards == 11
    for ending in (".bin", ".idx", ".json"):
        assert (tmp_path / f"c{ending}").read_bytes() == (tmp_path / f"whole{ending}").read_bytes()
    assert len(list(tmp_path.iterdir())) == 6


def test_a_killed_worker_ends_the_run_at_once_naming_signal_9(tmp_path: Path, model: Path, five_thousand: Path) -> None:
    process = start(five_thousand, model, tmp_path / "c")
    os.kill(children(process)[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "killed by signal 9" in errors and "memory" in errors and "kept in" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["c.work"]


def test_a_polite_kill_keeps_the_finished_shards_and_nothing_else(
    tmp_path: Path, model: Path, five_thousand: Path
) -> None:
    process = start(five_thousand, model, tmp_path / "c")
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "interrupted" in errors and "shards are finished and kept" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["c.work"]


@pytest.mark.usefixtures("small_shards")
def test_a_shard_that_changed_on_disk_is_not_used(
    tmp_path: Path, model: Path, five_thousand: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start(five_thousand, model, tmp_path / "c")
    process.kill()
    process.communicate()
    damaged = sorted((tmp_path / "c.work").glob("*.json"))[0].with_suffix(".bin")
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    arguments = [str(five_thousand), "--tokenizer", str(model), "--output", str(tmp_path / "c")]
    assert main(arguments) == 2
    assert f"{damaged}: is not as it was written, so it was removed" in capsys.readouterr().err
    assert published(tmp_path) == []
    assert main(arguments) == 0


def test_another_run_for_the_same_output_is_refused(tmp_path: Path, model: Path, five_thousand: Path) -> None:
    process = start(five_thousand, model, tmp_path / "c")
    try:
        assert main([str(five_thousand), "--tokenizer", str(model), "--output", str(tmp_path / "c")]) == 2
    finally:
        (tmp_path / "go").touch()
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_what_another_policy_and_a_mended_file_leave_as_it_was_is_not_done_again(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_texts(tmp_path / "a.jsonl", ["one " * 300_000])
    write(tmp_path / "b.jsonl", ["{", json.dumps({"text": "two"})])
    arguments = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), "--tokenizer", str(model), "--json"]
    arguments += ["--output", str(tmp_path / "c"), "--workers", "1"]
    assert main(arguments) == 2 and "1 of 2 shards are finished" in capsys.readouterr().err
    assert main([*arguments, "--bad-records", "skip"]) == 0
    assert json.loads(capsys.readouterr().out)["shards_resumed"] == 1
    assert not (tmp_path / "c.work").exists()


@pytest.mark.parametrize("old, new", [(b"end", b"END"), (b'["', b'x"')], ids=["the rest of a line", "the line before"])
def test_a_shard_is_not_used_where_the_file_changed_beside_it(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes
) -> None:
    monkeypatch.setattr("data_tools.pieces.SMALLEST_SHARD_BYTES", 1000)
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": "a" * 980 + " end"}), "", '["' + "b" * 940 + '",', json.dumps({"text": "c" * 800})]
    write(path, [*lines, "X" + lines[-1]])
    arguments = [str(path), "--tokenizer", str(model), "--bad-records", "skip", "--workers", "1", "--output"]
    assert main([*arguments, str(tmp_path / "c"), "--max-bad", "2"]) == 2
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new).replace(b"X", b" "))
    assert main([*arguments, str(tmp_path / "c")]) == main([*arguments, str(tmp_path / "fresh")]) == 0
    assert (tmp_path / "c.bin").read_bytes() == (tmp_path / "fresh.bin").read_bytes()


def test_lines_and_rows_are_named_as_the_file_counts_them_whatever_the_shards(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("data_tools.pieces.SMALLEST_SHARD_BYTES", 100)
    lines = [json.dumps({"id": i, "text": f"number {i}"}) for i in range(1, 101)]
    lines[6] = lines[76] = "{"
    write(tmp_path / "a.jsonl", lines)
    rows = [None if i in (3, 39) else f"row {i}" for i in range(1, 41)]
    parquet.write_table(pa.table({"id": range(1, 41), "text": rows}), tmp_path / "b.parquet", row_group_size=6)
    wanted = [("a.jsonl", 7), ("a.jsonl", 77), ("b.parquet", 3), ("b.parquet", 39)]
    arguments = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.parquet"), "--tokenizer", str(model), "--json"]
    arguments += ["--bad-records", "skip", "--workers", "1", "--metadata", "id", "--output"]
    for extra in ([], ["--part", "1/3"], ["--part", "2/3"], ["--part", "3/3"]):
        assert main([*arguments, str(tmp_path / "c"), *extra]) == 0
        # The footer of the second file makes its last group the largest.
        assert json.loads(capsys.readouterr().out)["shards"] > (1 if extra else 7)
    assert merge([*map(str, tmp_path.glob("c.part-*")), "--output", str(tmp_path / "m")]) == 0
    for ending in (".bin", ".idx", ".json", ".skipped.ndjson", ".metadata.ndjson"):
        assert (tmp_path / f"m{ending}").read_bytes() == (tmp_path / f"c{ending}").read_bytes()
    skipped = [json.loads(line) for line in (tmp_path / "c.skipped.ndjson").read_text().splitlines()]
    assert [(Path(one["file"]).name, one["line"]) for one in skipped] == wanted
    kept = [json.loads(line) for line in (tmp_path / "c.metadata.ndjson").read_text().splitlines()]
    assert len(kept) == 136 and all(one["line"] == one["metadata"]["id"] for one in kept)


@pytest.mark.parametrize("argument", ["0/3", "4/3", "1", "1/0", "a/b", "-1/3"])
def test_a_part_that_is_none_is_refused(tmp_path: Path, model: Path, argument: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["x.jsonl", "--tokenizer", str(model), "--output", str(tmp_path / "c"), f"--part={argument}"])
    assert stop.value.code == 2
