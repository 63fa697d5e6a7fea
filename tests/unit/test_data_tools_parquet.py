"""Rows of Parquet files in bounded memory, and what is damaged or too large among them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from attnres_train.tokenizer.training import TrainingOptions, train_model
from data_tools.parquet import group_sizes
from data_tools.parquet_pages import pages_of
from data_tools.pieces import Piece
from data_tools.records import BadRecord, Document, Reading, read_documents

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    parquet.write_table(pa.table(columns), path, **options)
    return path


def read(path: Path, reading: Reading) -> list[Document | BadRecord]:
    return list(read_documents(Piece(path, None, None, 0), reading))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_what_pages_take_is_read_from_their_headers(tmp_path: Path, version: str, compression: str) -> None:
    chance = random.Random(1)
    texts = [chance.randbytes(chance.randrange(2000)).hex() for _ in range(3000)]
    options: dict[str, Any] = {"data_page_version": version, "compression": compression, "data_page_size": 20_000}
    plain = write(tmp_path / "p.parquet", {"text": texts}, use_dictionary=False, **options)
    worded = write(tmp_path / "d.parquet", {"text": texts[:4] * 700}, **options)
    for path in (plain, worded):
        column = parquet.ParquetFile(path).metadata.row_group(0).column(0)
        with open(path, "rb") as file:
            pages = pages_of(file.fileno(), column)
        if path == plain:
            # 1,024 texts of 2,000 characters in the mean are written at once, so a page is some 2 MB.
            assert 1_900_000 < pages.value < 2_200_000
            assert pages.value * 1.4 < pages.held < pages.value * 2.1
        else:
            # The four texts, each after its length.
            assert pages.value == sum(len(text) + 4 for text in texts[:4])
            assert 2 * pages.value < pages.held < 2 * pages.value + 2000


def test_a_row_group_is_refused_by_what_it_would_take_and_told_how_to_read_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": ["x" * 900] * 200 + ["y" * 900]}, use_dictionary=False)
    (bad,) = read(path, Reading(longest_bytes=4096))
    assert isinstance(bad, BadRecord) and (bad.kind, bad.number, bad.records) == ("too large", None, 201)
    assert "row group 0 takes 0.2 MiB to decode, more than the 0.125 MiB it may take" in bad.reason
    assert "pass --longest-mib 1" in bad.reason
    assert len(read(path, Reading(longest_bytes=MIB))) == 201
    lists = write(tmp_path / "l.parquet", {"text": ["x"] * 3, "m": [[1] * 30_000] * 3})
    assert [type(record) for record in read(lists, Reading(longest_bytes=4096))] == [Document] * 3
    (bad,) = read(lists, Reading(metadata_keys=("m",), longest_bytes=4096))
    assert isinstance(bad, BadRecord) and (bad.kind, bad.records) == ("too large", 3)


def test_rows_with_too_much_text_or_too_much_else_are_passed_over(tmp_path: Path) -> None:
    texts = ["x", "y" * 5000, "z" * 4096, None]
    path = write(tmp_path / "a.parquet", {"text": texts, "m": ["a", "b", "c", "d" * 5000]}, row_group_size=2)
    limited = Reading(longest_bytes=4096)
    kinds = [
        "too large" if isinstance(r, BadRecord) and r.kind == "too large" else type(r) for r in read(path, limited)
    ]
    assert kinds == [Document, "too large", Document, BadRecord]
    with_other = read(path, Reading(metadata_keys=("m",), longest_bytes=4096))
    assert [record.number for record in with_other if isinstance(record, BadRecord)] == [2, 4]
    assert all(record.kind == "too large" for record in with_other if isinstance(record, BadRecord))


def test_damage_is_told_with_the_rows_that_are_lost_and_page_checksums_are_compared(tmp_path: Path) -> None:
    texts = [f"number {i} of these" for i in range(100)]
    options: dict[str, Any] = {"row_group_size": 25, "use_dictionary": False, "compression": "none"}
    path = write(tmp_path / "a.parquet", {"text": texts}, write_page_checksum=True, **options)
    sizes = group_sizes(path)
    assert sizes is not None and [rows for rows, _ in sizes] == [25] * 4
    assert sum(size for _, size in sizes) == path.stat().st_size
    data = bytearray(path.read_bytes())
    data[data.index(b"number 30 ")] ^= 1
    path.write_bytes(data)
    *good, lost = read(path, Reading())
    assert [record.text for record in good if isinstance(record, Document)] == texts[:25]
    assert isinstance(lost, BadRecord) and (lost.number, lost.kind, lost.records) == (26, "unreadable", 75)
    assert "the 75 rows from there on are left out with it" in lost.reason


def peak_mb(folder: Path, name: str, *options: str) -> tuple[int, dict[str, Any]]:
    """Most memory of a process, in MB, and the report."""
    command = [sys.executable, "-m", "data_tools.preprocess", name, "--tokenizer", "m.model", "--output", "c", "--json"]
    told = "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], capture_output=True); "
    told += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, done.stdout.decode())"
    command = [sys.executable, "-c", told, *command, "--bad-records", "skip", "--workers", "1", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    memory, _, report = done.stdout.partition(" ")
    return int(memory) // 1000, json.loads(report)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["40 MiB", "3.9 MiB", "3.9 MiB twelve times", "metadata", "one cell", "list"])
def test_a_worker_stays_below_400_mb_whatever_the_rows(tmp_path: Path, case: str) -> None:
    long = [f"{i} " + os.urandom(39 * MIB // 20).hex() for i in range(32)]
    columns, options, stored = {
        "40 MiB": ({"text": ["x" * (40 * MIB)] * 32}, (), 0),
        "3.9 MiB": ({"text": long}, (), 0),
        "3.9 MiB twelve times": ({"text": long[:12]}, (), 12),
        "metadata": ({"text": ["words"] * 32, "m": ["x" * (40 * MIB)] * 32}, ("--metadata", "m"), 0),
        "one cell": ({"text": ["x" * (400 * MIB)]}, (), 0),
        "list": ({"text": ["words"] * 8, "m": [[1] * 20_000_000] * 8}, ("--metadata", "m"), 0),
    }[case]
    write(tmp_path / "a.parquet", columns)
    with open(tmp_path / "b.jsonl", "w") as file:
        file.write(json.dumps({"text": "one more document", "m": 1}) + "\n")
    (tmp_path / "m.model").write_bytes(train_model(["some words"] * 20, TrainingOptions(vocab_size=270)))
    memory, report = peak_mb(tmp_path, ".", *options)
    assert report["documents"] == stored + 1
    assert report["skipped_records"] == parquet.ParquetFile(tmp_path / "a.parquet").metadata.num_rows - stored
    assert memory < 400


def test_groups_and_files_without_rows_are_none(tmp_path: Path) -> None:
    # huggingface/dataset-viewer#2709, ClickHouse/ClickHouse#107746
    schema = pa.schema([("text", pa.string())])
    with parquet.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for texts in (["one"], [], ["two"]):
            writer.write_table(pa.table({"text": pa.array(texts, pa.string())}))
    with parquet.ParquetWriter(tmp_path / "b.parquet", schema):
        pass
    assert [getattr(record, "text", None) for record in read(tmp_path / "a.parquet", Reading())] == ["one", "two"]
    assert read(tmp_path / "b.parquet", Reading()) == []


@pytest.mark.parametrize(
    "claim, what",
    [("8285ffff0f", "takes 2,048.0 MiB to decode"), ("82857f", "cannot be read"), ("828502", "cannot be")],
)
def test_a_page_that_claims_another_size_is_told(tmp_path: Path, claim: str, what: str) -> None:
    # apache/arrow#38326
    path = write(
        tmp_path / "a.parquet",
        {"text": [f"word {i}" for i in range(2000)]},
        use_dictionary=False,
        compression="snappy",
        write_statistics=False,
    )
    data, size = path.read_bytes(), bytes.fromhex("82850315")
    assert data.index(size) < 20
    path.write_bytes(data.replace(size, bytes.fromhex(claim) + b"\x15", 1))
    (bad,) = read(path, Reading())
    assert isinstance(bad, BadRecord) and bad.records == 2000 and what in bad.reason
