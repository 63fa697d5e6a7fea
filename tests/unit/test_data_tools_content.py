"""Files that are not what their names say: told by what they are, each as one bad file, with the name to give it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pytest
from backports import zstd
from pyarrow import parquet

from data_tools.pieces import Piece
from data_tools.records import BadRecord, Document, Reading, read_documents

# Three lines, as `git lfs pointer` writes them.
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 12345\n"
LINES = b"".join(json.dumps({"text": f"document {i}"}).encode() + b"\n" for i in range(50))
PAGE = b"<!DOCTYPE html>\n<html><body>\n404\n</body></html>\n"


def in_words(value: object) -> str:
    """For the name of a test: archives hold the time they were made."""
    return value if isinstance(value, str) else "content"


def table() -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table({"text": ["words"] * 50}), file)
    return file.getvalue()


def only(path: Path) -> BadRecord:
    (bad,) = read_documents(Piece(path, None, None, 0), Reading())
    assert isinstance(bad, BadRecord) and (bad.number, bad.records) == (None, 1)
    return bad


@pytest.mark.parametrize("kind", [".jsonl", ".txt", ".parquet"])
@pytest.mark.parametrize("compression", ["", ".gz", ".zst", ".bz2", ".xz"])
@pytest.mark.parametrize(
    "content, what",
    [
        (POINTER, "is a Git LFS pointer, not the file of 12345 bytes that it stands for: get that with `git lfs pull`"),
        (b"/annex/objects/SHA256E-s12345--4d4d.jsonl\n", "is a git-annex pointer"),
    ],
    ids=["lfs", "annex"],
)
def test_a_pointer_is_no_document_under_any_name(
    tmp_path: Path, kind: str, compression: str, content: bytes, what: str
) -> None:
    path = tmp_path / f"a{kind}{compression}"
    path.write_bytes(content)
    bad = only(path)
    assert bad.kind == "pointer" and bad.reason.startswith(what)


@pytest.mark.parametrize(
    "name, content, what, right",
    [
        ("a.jsonl", gzip.compress(LINES), "is a gzip archive, no text", "a.jsonl.gz"),
        ("a.jsonl", zstd.compress(LINES), "is a zstandard archive, no text", "a.jsonl.zst"),
        ("a.txt", bz2.compress(LINES), "is a bzip2 archive, no text", "a.txt.bz2"),
        ("a.jsonl", lzma.compress(LINES), "is an xz archive, no text", "a.jsonl.xz"),
        ("a.parquet", gzip.compress(table()), "is a gzip archive, no Parquet file", "a.parquet.gz"),
        ("a.jsonl.zst", gzip.compress(LINES), "is a gzip archive, not compressed as .zst says", "a.jsonl.gz"),
        ("a.jsonl", table(), "is a Parquet file, no text", "a.parquet"),
        ("a.txt", table(), "is a Parquet file, no text", "a.parquet"),
        ("a.parquet.gz", table(), "is a Parquet file, not compressed as .gz says", "a.parquet"),
        ("a.jsonl.gz", gzip.compress(table()), "is a Parquet file, inside, no text", "a.parquet.gz"),
        ("a.b.jsonl.gz", LINES, "is plain text, a JSON object a line, not compressed as .gz says", "a.b.jsonl"),
        ("a.parquet", LINES, "is plain text, a JSON object a line, no Parquet file", "a.jsonl"),
        ("a.parquet.gz", LINES, "is plain text, a JSON object a line, not compressed as .gz says", "a.jsonl"),
        ("a.parquet", b"just words\n", "is plain text, no Parquet file", "a.txt"),
        ("a.txt.xz", b"caf\xc3\xa9\n", "is plain text, not compressed as .xz says", "a.txt"),
        ("a.json.gz", LINES, "is plain text, a JSON object a line, not compressed as .gz says", "a.jsonl"),
    ],
    ids=in_words,
)
def test_a_file_of_another_kind_is_told_with_the_name_to_give_it(
    tmp_path: Path, name: str, content: bytes, what: str, right: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert only(tmp_path / name).reason == f"{what}: name it {right}"
    (tmp_path / name).rename(tmp_path / right)
    found = list(read_documents(Piece(tmp_path / right, None, None, 0), Reading()))
    assert found and all(isinstance(record, Document) for record in found)


@pytest.mark.parametrize(
    "name, content, what",
    [
        ("a.jsonl", PAGE, "is HTML or XML (a failed download?), no lines of JSON: get it again"),
        ("a.parquet", PAGE, "is HTML or XML (a failed download?), no Parquet file: get it again"),
        ("a.jsonl.gz", PAGE, "is HTML or XML (a failed download?), not compressed as .gz says: get it again"),
        ("a.jsonl.gz", gzip.compress(PAGE), "is HTML or XML (a failed download?), inside, no lines of JSON"),
        ("a.jsonl.gz", gzip.compress(gzip.compress(LINES)), "it was compressed twice; unpack it once"),
        ("a.jsonl", b"PK\x03\x04" + bytes(60), "is a zip archive, no text: unpack or convert it"),
        ("a.txt.gz", gzip.compress(bytes(257) + b"ustar" + bytes(250)), "is a tar archive, inside, no text"),
        ("a.jsonl", LINES.decode().encode("utf-16"), "not UTF-8 but UTF-16, by its byte order mark"),
        ("a.jsonl.gz", bytes(3000), "is not compressed as .gz says: it begins with the bytes 00 00 00 00 00 00 00 00"),
        ("a.parquet", b"\x00\x01", "is no Parquet file: it begins with the bytes 00 01; make it again"),
    ],
    ids=in_words,
)
def test_a_file_that_cannot_be_read_under_any_name_is_one_bad_file(
    tmp_path: Path, name: str, content: bytes, what: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert what in only(tmp_path / name).reason


def test_a_large_file_of_another_kind_is_told_by_its_first_piece_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(gzip.compress(LINES))
    size = path.stat().st_size
    pieces = [Piece(path, start, min(start + 40, size), 40) for start in range(0, size, 40)]
    assert [len(list(read_documents(piece, Reading()))) for piece in pieces] == [1] + [0] * (len(pieces) - 1)
    parquet.write_table(pa.table({"body": ["words"] * 50}), tmp_path / "a.parquet", row_group_size=10)
    groups = [Piece(tmp_path / "a.parquet", start, start + 1, 10) for start in range(5)]
    assert [len(list(read_documents(piece, Reading()))) for piece in groups] == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("text", ["BZh is no archive", "PAR1 and par 2", "<p>a page</p>", "version https://x\noid y"])
def test_a_text_that_begins_as_another_file_might_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    (document,) = read_documents(Piece(tmp_path / "a.txt", None, None, 0), Reading())
    assert isinstance(document, Document) and document.text == text
