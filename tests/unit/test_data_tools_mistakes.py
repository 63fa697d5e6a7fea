"""What users of the data tools do wrong, or meet: each is told, and nothing of theirs is lost."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet.encryption as encryption
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers

from attnres_train.data.indexed import HEADER, IndexedReader
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.data.paths import idx_path
from attnres_train.errors import Refused
from attnres_train.strict_json import as_text, dumps
from attnres_train.tokenizer.training import TrainingOptions, train_model
from data_tools import encode as encode_module
from data_tools.inspect import main as inspect
from data_tools.merge import main as merge
from data_tools.pieces import Piece
from data_tools.preprocess import main as preprocess
from data_tools.records import BadRecord, Reading, read_documents

ROOT = Path(__file__).parents[2]
TEXTS = [f"Document {i} of several.\n" for i in range(30)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a tokenizer and an input."""
    monkeypatch.chdir(tmp_path)
    Path("m.model").write_bytes(train_model(TEXTS * 20, TrainingOptions(vocab_size=290)))
    Path("a.jsonl").write_text("".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(TEXTS)))
    return tmp_path


def run(*arguments: str, output: str = "c") -> int:
    return preprocess([*arguments, "--tokenizer", "m.model", "--output", output, "--workers", "1"])


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def test_lists_beside_a_pair_are_no_inputs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.jsonl").write_text(Path("a.jsonl").read_text() + "{\n")
    assert run(".", "--metadata", "id", "--bad-records", "skip") == 0
    assert sorted(path.name for path in here.glob("c.*.ndjson")) == ["c.metadata.ndjson", "c.skipped.ndjson"]
    capsys.readouterr()
    assert run(".", "--metadata", "id", "--bad-records", "skip") == 0
    assert "status: already done" in capsys.readouterr().out
    assert run("c.skipped.ndjson", "--overwrite") == 2
    assert Path("c.skipped.ndjson").exists()


@pytest.mark.parametrize("name", ["c.metadata.ndjson", "c.skipped.ndjson"])
@pytest.mark.parametrize("change", ["removed", "changed"])
def test_done_is_only_what_has_its_lists(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, change: str
) -> None:
    Path("a.jsonl").write_text(Path("a.jsonl").read_text() + "{\n")
    arguments = ["a.jsonl", "--metadata", "id", "--bad-records", "skip"]
    assert run(*arguments) == 0
    Path(name).unlink() if change == "removed" else Path(name).write_text("else")
    assert run(*arguments) == 2 and "a list beside it is missing or changed" in told(capsys)
    assert run(*arguments, "--overwrite") == 0
    assert json.loads(Path("c.skipped.ndjson").read_text())["line"] == 31


HELD = """
import os, sys, time
from data_tools import encode
from data_tools.preprocess import main

at_once = encode._ShardWork.run
def run(self, shard):
    while not os.path.exists("go"):
        time.sleep(0.01)
    return at_once(self, shard)
encode._ShardWork.run = run
sys.exit(main(sys.argv[1:]))
"""


def test_a_run_that_is_refused_leaves_the_work_of_the_one_under_way(here: Path) -> None:
    command = [sys.executable, "-c", HELD, "a.jsonl", "--tokenizer", "m.model", "--output", "c"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while first.poll() is None and not list(here.glob("c.work/*")):
        time.sleep(0.01)
    try:
        assert run("a.jsonl") == 2
    finally:
        Path("go").touch()
        _, errors = first.communicate(timeout=120)
    assert first.returncode == 0, errors


def test_a_kept_shard_that_lacks_a_file_is_made_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("b.jsonl").write_text(json.dumps({"text": "x " * 600_000}) + "\n")
    Path("z.jsonl").write_text("{\n")
    assert run("a.jsonl", "b.jsonl", "z.jsonl") == 2
    kept = sorted(here.glob("c.work/*.lengths"))
    assert kept
    kept[0].unlink()
    assert run("a.jsonl", "b.jsonl", "z.jsonl", "--bad-records", "skip") == 0


@pytest.mark.parametrize("output", ["", "folder/", ".", "folder/.."])
def test_an_output_that_names_no_files_is_refused(here: Path, capsys: pytest.CaptureFixture[str], output: str) -> None:
    assert run("a.jsonl", output=output) == 2 and "is no prefix of file names" in told(capsys)
    assert not list(here.glob(".*"))


@pytest.mark.parametrize(
    "arguments, what",
    [
        (("--max-bad", "2"), "without --bad-records skip"),
        (("--joiner", "x"), "only one --text-key"),
        (("--text-key", "text", "--text-key", "text"), "'text' is given more than once"),
        (("--metadata", "id", "--metadata", "id"), "'id' is given more than once"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], what: str
) -> None:
    assert run("a.jsonl", *arguments) == 2 and what in told(capsys)


def test_folders_behind_links_are_read_once_and_loops_end(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("real").mkdir()
    Path("in").mkdir()
    Path("a.jsonl").rename("real/a.jsonl")
    Path("in/link").symlink_to(here / "real")
    Path("real/loop").symlink_to(here / "in")
    assert run("in") == 0
    assert IndexedReader("c").num_documents == 30
    Path("in/b.jsonl").symlink_to("b.jsonl")
    assert run("in", output="d") == 2 and "in/b.jsonl: is a link to nothing" in told(capsys)


def test_a_locale_that_cannot_tell_names_is_named_for_it(here: Path) -> None:
    Path("a.jsonl").rename("caf\u00e9.jsonl")
    options = ["--tokenizer", "m.model", "--output", "c"]
    command = [sys.executable, "-m", "data_tools.preprocess", "caf\u00e9.jsonl", *options]
    for more, code in (({"PYTHONUTF8": "0"}, 2), ({"PYTHONUTF8": "1"}, 0)):
        locale = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT), **more}
        done = subprocess.run(command, env=locale, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert code == 0 or "its name is UTF-8, but the locale says that names are ascii" in done.stderr


def test_an_output_where_no_file_can_be_made_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a.jsonl", output="/proc/c") == 2
    assert "/proc/c.bin: no file can be made in /proc\n    -> name another folder" in told(capsys)


def test_names_and_lists_that_are_not_utf8_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder").mkdir()
    Path("a.jsonl").rename(os.fsdecode(b"folder/caf\xe9.jsonl"))
    assert run("folder") == 2 and r"caf\xe9.jsonl: its name is not UTF-8" in told(capsys)
    Path("list").write_bytes(b"caf\xe9.jsonl\n")
    assert run("@list") == 2 and "the list is not UTF-8: byte 3" in told(capsys)
    Path("list").write_bytes(b"\xef\xbb\xbfabsent.jsonl\n")
    assert run("@list") == 2 and "absent.jsonl: does not exist" in told(capsys)


def test_files_of_a_pair_name_it_and_what_is_not_whole_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "xyz":
        assert run("a.jsonl", output=name) == 0
    assert merge(["x.bin", "y.idx", "z", "z.json", "--output", "m"]) == 0
    assert IndexedReader("m").num_documents == 90
    assert merge(["x", "./x", "--output", "n"]) == 2 and "given twice" in told(capsys)
    Path("y.idx").unlink()
    everything = sorted(path.name for path in here.glob("[xyz].*"))
    assert merge([*everything, "--output", "n"]) == 2 and "y.idx: is missing" in told(capsys)


def test_metadata_is_json_whatever_it_holds() -> None:
    values: dict[str, Any] = {"a": float("nan"), "b": [float("inf"), {"c": -1e999}], "d": b"\xff", "e": timedelta(1)}
    assert json.loads(dumps(values, default=as_text)) == {
        "a": "NaN", "b": ["Infinity", {"c": "-Infinity"}], "d": r"\xff", "e": "1 day, 0:00:00"
    }  # fmt: skip


def test_parquet_values_that_python_has_none_for_are_told_as_text(tmp_path: Path) -> None:
    columns = {
        "text": pa.array(["one", "two"]),
        "day": pa.array([0, 10_000_000], pa.date32()),
        "word": pa.array([b"good", b"caf\xe9"]).view(pa.string()),
    }
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    reading = Reading(metadata_keys=("day", "word"))
    records = list(read_documents(Piece(tmp_path / "a.parquet", None, None, 0), reading))
    assert [getattr(record, "text", None) for record in records] == ["one", "two"]
    assert json.loads(dumps(records[1].fields, default=as_text))["word"] == r"caf\xe9"  # type: ignore[union-attr]


class PlainKeys(encryption.KmsClient):
    """Keys wrapped in nothing but base64."""

    def __init__(self, configuration: Any):
        super().__init__()

    def wrap_key(self, key: bytes, master: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, master: str) -> bytes:
        return base64.b64decode(key)


@pytest.mark.parametrize("plaintext_footer", [True, False])
def test_an_encrypted_parquet_file_is_told_and_no_crash(
    here: Path, capsys: pytest.CaptureFixture[str], plaintext_footer: bool
) -> None:
    configuration = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"k": ["text"]}, plaintext_footer=plaintext_footer
    )
    properties = encryption.CryptoFactory(PlainKeys).file_encryption_properties(
        encryption.KmsConnectionConfig(), configuration
    )
    table = pa.table({"text": TEXTS})
    with parquet.ParquetWriter("e.parquet", table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    command = [sys.executable, "-m", "data_tools.preprocess", "e.parquet", "--tokenizer", "m.model", "--output", "c"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 2 and "e.parquet: cannot be read to its end" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "content, what",
    [("ab\n".encode("utf-32"), "UTF-32"), ("ab\n".encode("utf-16-le"), "UTF-16 without a mark")],
)
def test_text_in_wide_characters_is_told_by_its_name(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    (bad,) = read_documents(Piece(tmp_path / "a.txt", None, None, 0), Reading())
    assert isinstance(bad, BadRecord) and what in bad.reason


def make_pair(tokens: list[int]) -> None:
    with IndexedWriter("f", 1 << 31) as writer:
        writer.add_documents(np.array(tokens), np.array([1] * len(tokens)))
        writer.finish()
        writer.publish()


def test_bounds_altered_in_the_middle_are_refused_at_open(here: Path) -> None:
    make_pair([1, 2, 3, 4])
    data = bytearray(idx_path("f").read_bytes())
    bounds_at = HEADER.size + 4 * (4 + 8)
    data[bounds_at + 2 * 8] = 200
    idx_path("f").write_bytes(data)
    with pytest.raises(Refused, match="bounds"):
        IndexedReader("f")


def test_ids_of_no_vocabulary_are_refused_where_they_are_counted_or_shown(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_pair([1, (1 << 31) - 1])
    assert inspect(["f"]) == 0
    assert inspect(["f", "--statistics"]) == 2 and "holds id 2147483647" in told(capsys)
    assert inspect(["f", "--documents", "2", "--tokenizer", "m.model"]) == 2 and "f: document 1" in told(capsys)
    assert inspect(["f", "--documents", "1", "--from", "2"]) == 2 and "count from 0" in told(capsys)


def test_a_reader_that_goes_away_does_not_undo_the_work(here: Path) -> None:
    command = f"{sys.executable} -m data_tools.preprocess a.jsonl --tokenizer m.model --output c 2>errors | true"
    subprocess.run(command, shell=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    assert IndexedReader("c").num_documents == 30
    assert Path("errors").read_text() == ""


def test_a_hangup_that_is_ignored_stays_ignored(here: Path) -> None:
    code = "import os, signal, sys\n"
    code += "from data_tools import command\n"
    code += "def tool(arguments): os.kill(os.getpid(), signal.SIGHUP); return {'status': 'done'}\n"
    code += "sys.exit(command.Tool('t', '', lambda parser: None, tool)([]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for before, wanted in (("trap '' HUP; ", 0), ("", 1)):
        command = f'{before}exec {sys.executable} -c "$CODE"'
        done = subprocess.run(
            ["bash", "-c", command],
            env={**environment, "CODE": code},
            capture_output=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # under nohup it would be ignored
        )
        assert done.returncode == wanted, done.stderr


def test_a_text_that_the_tokenizer_refuses_is_named_by_file_and_record(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = Library(models.WordLevel({"a": 0, "b": 1}))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_special_tokens(["<end>"])
    library.save("words.json")
    Path("b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("a b", "b", "a c", "b c")))
    arguments = ["b.jsonl", "--tokenizer", "words.json", "--eod-piece", "<end>", "--output", "c", "--workers", "1"]
    assert preprocess(arguments) == 2
    assert "b.jsonl:3: words.json cannot encode a text" in told(capsys)


@pytest.mark.parametrize("line", ["", "{", '{"text": "a"}', '{"text": "a", "other": "%s"}' % ("x" * 3000)])
def test_no_kind_of_record_gathers_in_memory(here: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr("data_tools.encode.BATCH_BYTES", 20_000)
    largest = 0
    encode = encode_module._ShardWork._encode

    def watched(work: Any, piece: Piece, records: list[Any]) -> None:
        nonlocal largest
        largest = max(largest, len(records))
        encode(work, piece, records)

    monkeypatch.setattr("data_tools.encode._ShardWork._encode", watched)
    Path("b.jsonl").write_text((line + "\n") * 500 + json.dumps({"text": "last"}) + "\n")
    assert run("b.jsonl", "--bad-records", "skip") == 0
    assert largest <= (7 if len(line) > 3000 else 41)
