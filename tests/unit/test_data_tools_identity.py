"""A file is what its bytes are, whatever its size and time say: results claim checksums."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnres_train.data.files import sha256_of_file
from attnres_train.data.indexed import IndexedReader
from attnres_train.data.manifest import read_manifest
from attnres_train.tokenizer.load import load_tokenizer
from attnres_train.tokenizer.training import TrainingOptions, train_model
from data_tools import encode
from data_tools.merge import main as merge
from data_tools.pieces import Shard
from data_tools.preprocess import main
from data_tools.verify import main as verify

TEXTS = [f"number {i:03} of these documents" for i in range(100)]
Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Preprocesses in the current folder, in shards of 600 bytes; gives the exit code and the report."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("data_tools.pieces.SMALLEST_SHARD_BYTES", 600)
    Path("m.model").write_bytes(train_model(TEXTS, TrainingOptions(vocab_size=290)))
    write(TEXTS)

    def preprocess(*inputs: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main([*inputs, "--tokenizer", "m.model", "--output", "c", "--workers", "1", "--json"])
        return code, json.loads(capsys.readouterr().out)

    return preprocess


def write(texts: list[str]) -> None:
    Path("a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def edit(number: int) -> list[str]:
    """Another text of the same length in a file that keeps its time; returns all texts."""
    before = Path("a.jsonl").stat()
    texts = [*TEXTS[:number], TEXTS[number].replace("number", "NUMBER"), *TEXTS[number + 1 :]]
    write(texts)
    os.utime("a.jsonl", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert Path("a.jsonl").stat().st_size == before.st_size
    return texts


def stored() -> list[str]:
    reader, tokenizer = IndexedReader("c"), load_tokenizer("m.model")
    return [tokenizer.decode(reader.document(i).tolist()[:-1]) for i in range(reader.num_documents)]


def test_an_edited_source_with_its_old_time_is_not_done_already(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a.jsonl")[1]["status"] == "done"
    assert run("a.jsonl")[1]["status"] == "already done"
    edit(50)
    code, report = run("a.jsonl")
    assert code == 2 and "made with other inputs" in report["problems"][0]["message"]
    assert verify(["c", "--tokenizer", "m.model", "--text"]) == 2
    assert "not those that the pair was made of" in capsys.readouterr().err


def test_a_kept_shard_is_used_for_the_bytes_it_was_made_of_alone(run: Run) -> None:
    Path("z.jsonl").write_text("{" * 700)
    assert run("a.jsonl", "z.jsonl")[0] == 2
    kept = len(list(Path("c.work").glob("*.json")))
    assert kept >= 4
    texts = edit(50)
    Path("z.jsonl").write_text(json.dumps({"text": "z" * 700}))
    code, report = run("a.jsonl", "z.jsonl")
    assert (code, report["shards_resumed"]) == (0, kept - 1)
    assert stored() == [*texts, "z" * 700]
    manifest = read_manifest("c")
    assert manifest is not None and manifest.sources[0].sha256 == sha256_of_file(Path("a.jsonl"))


def test_another_time_alone_costs_no_shard(run: Run) -> None:
    Path("z.jsonl").write_text("{" * 700)
    assert run("a.jsonl", "z.jsonl")[0] == 2
    kept = len(list(Path("c.work").glob("*.json")))
    os.utime("a.jsonl", (1, 1))
    Path("z.jsonl").write_text(json.dumps({"text": "z" * 700}))
    assert run("a.jsonl", "z.jsonl")[1]["shards_resumed"] == kept


def test_a_file_that_is_gone_meanwhile_is_no_bad_record(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # Eventual-Inc/Daft#6520
    Path("z.jsonl").write_text(json.dumps({"text": "z"}) + "\n")
    work = encode._ShardWork.run

    def removing(self: encode._ShardWork, shard: Shard) -> object:
        Path("z.jsonl").unlink(missing_ok=True)
        return work(self, shard)

    monkeypatch.setattr(encode._ShardWork, "run", removing)
    code, report = run("a.jsonl", "z.jsonl", "--bad-records", "skip")
    assert code == 2 and report["problems"][0]["key"] == "z.jsonl"
    assert report["problems"][0]["message"] == "is gone since the run began"


class AtTheEnd:
    """A thread that does its work when it is waited for."""

    def __init__(self, target: Callable[[], None], daemon: bool):
        self.join = target

    def start(self) -> None: ...


class AtOnce:
    """A thread that has done its work when it is started."""

    def __init__(self, target: Callable[[], None], daemon: bool):
        self.start = target

    def join(self) -> None: ...


@pytest.mark.parametrize("when, checksum", [("before", AtTheEnd), ("before", AtOnce), ("after", AtTheEnd)])
def test_an_edit_while_the_file_is_read_is_found_whatever_its_time(
    run: Run, monkeypatch: pytest.MonkeyPatch, when: str, checksum: type[object]
) -> None:
    work = encode._ShardWork.run
    done: list[Shard] = []

    def edited(self: encode._ShardWork, shard: Shard) -> object:
        if when == "before" and not done:
            edit(1)
        facts = work(self, shard)
        done.append(shard)
        if when == "after" and len(done) == 3:
            edit(1)  # what the first shard read
        return facts

    monkeypatch.setattr(encode._ShardWork, "run", edited)
    monkeypatch.setattr("data_tools.sources.threading.Thread", checksum)
    code, report = run("a.jsonl")
    assert code == 2 and "a.jsonl" in report["problems"][0]["key"]
    assert report["problems"][0]["message"] == "changed while it was read"
    assert not Path("c.idx").exists()


def test_parts_that_share_a_file_must_have_read_the_same_one(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a.jsonl")[0] == 0
    for part in ("1/3", "2/3", "3/3"):
        assert run("a.jsonl", "--part", part)[1]["status"] == "done"
        assert run("a.jsonl", "--part", part)[1]["status"] == "already done"
    parts = [f"c.part-{number}-of-3" for number in (1, 2, 3)]
    assert merge([*parts, "--output", "m"]) == 0
    assert Path("m.json").read_bytes() == Path("c.json").read_bytes()
    edit(90)
    assert [run("a.jsonl", "--part", part)[0] for part in ("1/3", "2/3", "3/3")] == [2, 0, 2]
    assert run("a.jsonl", "--part", "3/3", "--overwrite")[0] == 0
    capsys.readouterr()
    assert merge([*parts, "--output", "n"]) == 2
    assert "c.part-3-of-3: has read another a.jsonl than the part that began it" in capsys.readouterr().err
