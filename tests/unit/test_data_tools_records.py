"""Files to documents, and the reasons why a record is none."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pytest

from attnres_train.errors import Refused
from data_tools.records import BadRecord, BadRecords, Document, parse_chunk, read_chunks


def read(path: Path) -> list[Document | BadRecord]:
    return [record for chunk in read_chunks([path]) for record in parse_chunk(chunk, "text")]


def texts(path: Path) -> list[str]:
    records = read(path)
    assert all(isinstance(record, Document) for record in records)
    return [record.text for record in records if isinstance(record, Document)]


LINES = "".join(json.dumps({"text": f"document {i} \u00e9\n"}, ensure_ascii=False) + "\n" for i in range(100)).encode()


@pytest.mark.parametrize(
    "ending, compress", [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
def test_every_compression_gives_the_same_documents(tmp_path: Path, ending: str, compress: object) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(compress(LINES))  # type: ignore[operator]
    assert texts(path) == [f"document {i} \u00e9\n" for i in range(100)]
    assert sum(chunk.read_bytes for chunk in read_chunks([path])) == path.stat().st_size
    whole = tmp_path / f"a.txt{ending}"
    whole.write_bytes(compress(LINES))  # type: ignore[operator]
    assert texts(whole) == [LINES.decode()]


@pytest.mark.parametrize("ending, compress", [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)])
def test_a_compressed_file_that_was_cut_short_is_refused(tmp_path: Path, ending: str, compress: object) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(compress(LINES)[:-9])  # type: ignore[operator]
    with pytest.raises(Refused, match="cannot be read to its end"):
        read(path)


def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(LINES)
    with pytest.raises(Refused, match="a.jsonl.gz: cannot be read"):
        read(path)


def test_chunks_are_bounded_in_records_and_bytes_and_keep_the_line_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    assert [(chunk.first_line, len(chunk.records)) for chunk in read_chunks([path])] == [
        (1, 32),
        (33, 32),
        (65, 32),
        (97, 4),
    ]
    monkeypatch.setattr("data_tools.records.CHUNK_BYTES", 40)
    assert [len(chunk.records) for chunk in read_chunks([path])] == [2] * 50


@pytest.mark.parametrize(
    "line, reason",
    [
        (b"}", "not JSON: Expecting value at column 1"),
        (b"plain words", "not JSON"),
        (b'{"text": "unclosed', "not JSON: Unterminated string starting at column 10"),
        (b'["text"]', "not a JSON object but a list"),
        (b'{"body": "x", "id": 1}', r"has no key 'text' \(its keys: body, id\)"),
        (b'{"text": null}', "no string but a NoneType"),
        (b'{"text": "\xff"}', "not UTF-8: byte 10 is 0xff"),
        (b'{"text": "ab\\ud800"}', r"lone surrogate U\+D800 at character 2"),
        (b'{"text": ' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_line_is_named_with_file_number_and_reason(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n\n' + line + b'\n{"text": "good"}')
    good, blank, bad, last = read(path)
    assert isinstance(good, Document) and isinstance(last, Document) and good.text == last.text == "good"
    assert isinstance(blank, Document) and blank.is_blank
    assert isinstance(bad, BadRecord) and (bad.file, bad.line) == (str(path), 3)
    with pytest.raises(Refused, match=rf"a\.jsonl:3: .*{reason}"):
        BadRecords("stop", None).add(bad)


def test_a_text_file_that_is_not_utf8_is_bad_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("caf\u00e9".encode("latin-1"))
    assert read(path) == [BadRecord(str(path), None, "not UTF-8: byte 3 is 0xe9")]


def test_a_byte_order_mark_at_the_start_of_a_file_is_not_text(tmp_path: Path) -> None:
    for name, content in (("a.txt", b"words"), ("a.jsonl", b'{"text": "words"}\n')):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content)
        assert texts(tmp_path / name) == ["words"]


def test_line_separators_inside_a_text_do_not_end_a_record(tmp_path: Path) -> None:
    text = "a\u2028b\u0085c\x0cd\re"
    path = tmp_path / "a.jsonl"
    path.write_bytes(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\r\n")
    assert texts(path) == [text]


def test_skipping_counts_up_to_the_limit_and_refuses_the_next() -> None:
    bad = BadRecords("skip", 2)
    for line in (1, 500):
        bad.add(BadRecord("a.jsonl", line, "not JSON"))
    with pytest.raises(Refused, match=r"a\.jsonl:1000.*bad record 3, --max-bad allows 2"):
        bad.add(BadRecord("a.jsonl", 1000, "not JSON"))
    assert [record["line"] for record in bad.report()] == [1, 500]


def test_a_limit_of_zero_allows_none() -> None:
    with pytest.raises(Refused, match="bad record 1"):
        BadRecords("skip", 0).add(BadRecord("a.jsonl", 1, "not JSON"))
