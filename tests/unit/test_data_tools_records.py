"""Files to documents, and the reasons why a record is none."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import lzma
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from backports import zstd
from pyarrow import parquet

from attnres_train.errors import Refused
from data_tools.bad_records import BadRecords, SkippedRecord
from data_tools.pieces import Piece
from data_tools.records import BadRecord, Document, Reading, documents_of, read_documents

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstd.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}
LINES = "".join(json.dumps({"text": f"document {i} \u00e9\n"}, ensure_ascii=False) + "\n" for i in range(100)).encode()


def read(path: Path, reading: Reading | None = None, told: list[int] | None = None) -> list[Document | BadRecord]:
    tell = (told if told is not None else []).append
    return list(read_documents(Piece(path, None, None, 0), reading or Reading(), tell))


def texts(path: Path, reading: Reading | None = None) -> list[str]:
    records = read(path, reading)
    assert all(isinstance(record, Document) for record in records), records
    return [record.text for record in records if isinstance(record, Document)]


def bad(path: Path, reading: Reading | None = None) -> list[BadRecord]:
    return [record for record in read(path, reading) if isinstance(record, BadRecord)]


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_every_compression_gives_the_same_documents(tmp_path: Path, ending: str) -> None:
    compress = COMPRESSORS[ending]
    path, whole = tmp_path / f"a.jsonl{ending}", tmp_path / f"a.txt{ending}"
    path.write_bytes(compress(LINES))
    told: list[int] = []
    read(path, told=told)
    assert texts(path) == [f"document {i} \u00e9\n" for i in range(100)]
    assert sum(told) == path.stat().st_size
    whole.write_bytes(compress(LINES))
    assert texts(whole) == [LINES.decode()]


@pytest.mark.parametrize("ending", [".gz", ".zst", ".xz", ".bz2"])
def test_members_one_after_the_other_are_one_stream(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(b"".join(COMPRESSORS[ending](LINES[start : start + 100]) for start in range(0, len(LINES), 100)))
    assert texts(path) == [f"document {i} \u00e9\n" for i in range(100)]


def flipped(data: bytes) -> bytes:
    """`data` with a bit of its checksum at the end turned over."""
    return data[:-6] + bytes([data[-6] ^ 4]) + data[-5:]


@pytest.mark.parametrize("ending", [".gz", ".zst", ".xz", ".bz2"])
@pytest.mark.parametrize("damage", ["cut", "second member cut", "checksum"])
def test_nothing_of_an_archive_with_a_wrong_end_is_used_and_all_its_lines_count_as_lost(
    tmp_path: Path, ending: str, damage: str
) -> None:
    compress = COMPRESSORS[ending]
    if ending == ".zst" and damage == "checksum":
        compress = partial(zstd.compress, options={zstd.CompressionParameter.checksum_flag: 1})
    content = {
        "cut": compress(LINES)[:-9],
        "second member cut": compress(LINES) + compress(LINES)[:-9],
        "checksum": flipped(compress(LINES)) if ending != ".zst" else compress(LINES)[:-1] + b"?",
    }[damage]
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(content)
    (lost,) = read(path)
    assert isinstance(lost, BadRecord) and (lost.number, lost.kind) == (None, "unreadable")
    assert "cannot be read to its end" in lost.reason
    least, most = {"cut": (1, 100), "second member cut": (100, 200), "checksum": (1, 101)}[damage]
    assert least <= lost.records <= most
    if lost.records > 1:
        assert f"the {lost.records} lines before that are left out" in lost.reason
    with pytest.raises(Refused, match="cannot be read to its end"):
        list(documents_of([path], Reading(), BadRecords("stop", None)))
    if lost.records > 1:
        with pytest.raises(Refused, match=f"this is bad record {lost.records}, --max-bad allows 1"):
            list(documents_of([path], Reading(), BadRecords("skip", 1)))


def test_a_flipped_bit_that_only_the_checksum_finds_costs_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    # Stored, not deflated: every byte decompresses.
    whole = bytearray(gzip.compress(LINES, compresslevel=0))
    whole[whole.index(b"document 7 ")] ^= 1
    path.write_bytes(whole)
    (lost,) = read(path)
    assert isinstance(lost, BadRecord) and lost.records == 100 and "the 100 lines before that" in lost.reason


@pytest.mark.parametrize("ending", [".gz", ".zst", ".xz", ".bz2"])
@pytest.mark.parametrize("junk", [b"?", b"some words\n", LINES])
def test_what_follows_a_whole_stream_and_is_none_costs_no_record_and_is_told(
    tmp_path: Path, ending: str, junk: bytes
) -> None:
    compress = COMPRESSORS[ending]
    for name, content, documents in ((".jsonl", LINES.rstrip(), 100), (".txt", b"words", 1)):
        path = tmp_path / f"a{name}{ending}"
        path.write_bytes(compress(content) + junk)
        *found, last = read(path)
        assert len(found) == documents and all(isinstance(record, Document) for record in found)
        assert isinstance(last, BadRecord) and (last.number, last.records) == (None, 1)
        assert f"ends with {len(junk):,} bytes that are no stream of {ending}" in last.reason
    table = tmp_path / f"a.parquet{ending}"
    parquet.write_table(pa.table({"text": ["one", "two"]}), tmp_path / "a.parquet")
    table.write_bytes(compress((tmp_path / "a.parquet").read_bytes()) + junk)
    assert [type(record) for record in read(table)] == [Document, Document, BadRecord]


def test_a_disk_that_fails_is_no_damage_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet.gz"
    parquet.write_table(pa.table({"text": ["one"]}), tmp_path / "a.parquet")
    path.write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("data_tools.streams.shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space left"):
        read(path)


def test_frames_that_are_to_be_skipped_are(tmp_path: Path) -> None:
    # oven-sh/bun#36021: pzstd writes one first.
    def skipped(sign: int) -> bytes:
        return bytes((sign, 0x2A, 0x4D, 0x18)) + (4).to_bytes(4, "little") + b"size"

    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(skipped(0x50) + zstd.compress(LINES) + skipped(0x5E) + zstd.compress(LINES) + skipped(0x5F))
    assert len(texts(path)) == 200


def test_an_odd_gzip_header_is_read(tmp_path: Path) -> None:
    plain = gzip.compress(LINES, mtime=0)
    # Flags: extra field, name, comment.
    odd = plain[:3] + b"\x1c" + plain[4:10] + b"\x04\x00abcd" + b"name\0" + b"comment\0" + plain[10:]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(odd + bytes(512))
    assert len(texts(path)) == 100


@pytest.mark.parametrize(
    "line, kind, reason",
    [
        (b"}", "not JSON", "not JSON: Expecting value at column 1"),
        (b"plain words", "not JSON", "not JSON"),
        (b'{"text": "a"}{"text": "b"}', "not JSON", "not JSON: Extra data at column 14"),
        (b'{"text": "unclosed', "not JSON", "not JSON: Unterminated string starting at column 10"),
        (b'["text"]', "not an object", "not a JSON object but an array: one object a line is wanted"),
        (b"null", "not an object", "not a JSON object but null"),
        (b"7", "not an object", "not a JSON object but a number"),
        (b'"text"', "not an object", "not a JSON object but a string"),
        (b'{"body": "x", "id": 1}', "key missing", r"has no key 'text' \(its keys: body, id\)"),
        (b'{" Text": "x"}', "key missing", r"its keys:  Text; is ' Text' meant\?\)[^$]*name the key with --text-key"),
        (b'{"text": null}', "null", "the value of 'text' is null"),
        (b'{"text": 7}', "not a string", "no string but a number"),
        (b'{"text": ' + b"9" * 5000 + b"}", "not a string", "no string but a number"),
        (b'{"text": ["a"]}', "not a string", "no string but an array"),
        (b'{"text": "a", "text": "b"}', "key twice", "has the key 'text' more than once"),
        (b'{"text": "\xff"}', "not UTF-8", "not UTF-8: byte 10 is 0xff"),
        (b'{"text": "ab\\ud800"}', "lone surrogate", r"lone surrogate U\+D800 at character 2"),
        (b'{"text": ' + b"[" * 100_000 + b"]" * 100_000, "not JSON", "nested too deeply"),
    ],
)
def test_a_bad_line_is_named_with_file_number_and_reason(tmp_path: Path, line: bytes, kind: str, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n\n' + line + b'\n{"text": "good"}')
    good, blank, wrong, last = read(path)
    assert isinstance(good, Document) and isinstance(last, Document) and good.text == last.text == "good"
    assert isinstance(blank, Document) and blank.is_blank
    assert isinstance(wrong, BadRecord) and (wrong.number, wrong.kind) == (3, kind)
    with pytest.raises(Refused, match=rf"a\.jsonl:3: .*{reason}"):
        list(documents_of([path], Reading(), BadRecords("stop", None)))


@pytest.mark.parametrize(
    "content, reason",
    [
        ("caf\u00e9".encode("latin-1"), "byte 3 is 0xe9"),
        ("caf\u00e9".encode("utf-16"), "UTF-16"),
        ("\u65e5\u672c".encode("shift-jis"), "byte 0 is 0x93"),
    ],
)
def test_a_text_file_in_another_encoding_is_bad_as_a_whole(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    (wrong,) = bad(tmp_path / "a.txt")
    assert wrong.number is None and wrong.kind == "not UTF-8" and reason in wrong.reason


def test_a_byte_order_mark_before_a_record_is_not_text(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    (tmp_path / "a.txt").write_bytes(mark + b"words")
    # Files joined with cat have more than one.
    (tmp_path / "a.jsonl").write_bytes((mark + b'{"text": "words"}\n') * 2)
    assert texts(tmp_path / "a.txt") == ["words"]
    assert texts(tmp_path / "a.jsonl") == ["words", "words"]


def test_line_separators_inside_a_text_do_not_end_a_record(tmp_path: Path) -> None:
    text = "a\u2028b\u0085c\x0cd\re"
    path = tmp_path / "a.jsonl"
    path.write_bytes(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\r\n")
    assert texts(path) == [text]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".txt", ".txt.zst", ".parquet"])
def test_a_record_beyond_the_limit_is_passed_over_and_told(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    sizes = [10, 5000, 10] if "txt" not in ending else [5000]
    values = ["x" * size for size in sizes]
    if ending == ".parquet":
        parquet.write_table(pa.table({"text": values}), path)
    else:
        lines = "".join(json.dumps({"text": value}) + "\n" for value in values)
        path.write_bytes(COMPRESSORS[path.suffix if path.suffix in COMPRESSORS else ""](lines.encode()))
    (wrong,) = bad(path, Reading(longest_bytes=1000))
    assert wrong.kind == "too large" and wrong.number == (None if "txt" in ending else 2)
    assert len(read(path, Reading(longest_bytes=1000))) == len(sizes)
    assert not bad(path, Reading(longest_bytes=10_000))


def test_several_keys_are_joined_and_each_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"title": "T", "text": "x"}\n{"title": "", "text": "x"}\n{"text": "x"}\n')
    first, second, third = read(path, Reading(("title", "text"), joiner=" | "))
    assert isinstance(first, Document) and (first.text, first.text_bytes) == ("T | x", 5)
    assert isinstance(second, Document) and second.text == "x"
    assert isinstance(third, BadRecord) and "has no key 'title'" in third.reason


def lines_piece(path: Path, start: int, end: int) -> list[str]:
    return [record.text for record in read_documents(Piece(path, start, end, 0), Reading()) if record.number]  # type: ignore[union-attr]


@pytest.mark.parametrize("cuts", [[], [1], [26, 27, 28], [50, 51, 100, 1000], list(range(1, 90))])
def test_pieces_of_a_file_together_are_the_file(tmp_path: Path, cuts: list[int]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    edges = [0, *cuts, len(LINES)]
    found = [text for start, end in zip(edges, edges[1:], strict=False) for text in lines_piece(path, start, end)]
    assert found == texts(path)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
def test_rows_of_parquet_are_documents_whatever_the_column_is_called_inside(tmp_path: Path, kind: pa.DataType) -> None:
    path = tmp_path / "a.parquet"
    values = ["first", "\u00e9\n", None, "", "last"] * 10
    table = pa.table({"id": range(50), "text": pa.array(values).cast(kind)})
    parquet.write_table(table, path, row_group_size=7, version="1.0")
    records = read(path, Reading(metadata_keys=("id", "absent")))
    assert [record.number for record in records] == list(range(1, 51))
    assert [getattr(record, "text", None) for record in records] == values
    assert isinstance(records[4], Document) and records[4].fields == {"id": 4, "text": "last"}
    assert isinstance(records[2], BadRecord) and "is null" in records[2].reason
    pieces = [Piece(path, 0, 3, 0), Piece(path, 3, 8, 0)]
    joined = [record for piece in pieces for record in read_documents(piece, Reading())]
    assert [getattr(record, "text", None) for record in joined] == values
    packed = tmp_path / "b.parquet.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [getattr(record, "text", None) for record in read(packed)] == values


def test_a_parquet_file_that_will_not_do_is_told_why(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"body": ["x"], "n": [1]}), path)
    assert "has no column 'text' (its columns: body, n)" in bad(path)[0].reason
    assert "the column 'n' holds int64, no text" in bad(path, Reading(("n",)))[0].reason
    parquet.write_table(pa.table({"text": pa.array([b"good", b"\xff"])}), path)
    assert [record.number for record in bad(path)] == [2] and "byte 0 is 0xff" in bad(path)[0].reason
    path.write_bytes(path.read_bytes()[:-9])
    assert bad(path)[0].kind == "unreadable"


def test_skipping_counts_up_to_the_limit_and_refuses_the_next() -> None:
    account = BadRecords("skip", 2)
    for line in (1, 500):
        account.add(SkippedRecord("a.jsonl", line, "not JSON", "not JSON: x"))
    with pytest.raises(Refused, match=r"a\.jsonl:1000.*bad record 3, --max-bad allows 2"):
        account.add(SkippedRecord("a.jsonl", 1000, "no text", "has no key"))
    assert [record["line"] for record in account.report()["skipped"]] == [1, 500]  # type: ignore[attr-defined]


def test_a_limit_of_zero_allows_none() -> None:
    with pytest.raises(Refused, match="bad record 1"):
        BadRecords("skip", 0).add(SkippedRecord("a.jsonl", 1, "not JSON", "not JSON"))


PARTS = {
    "an array": '[\n{"text": "a"},\n{"text": "b"}\n]\n',
    "an array with breaks between": '[\n\n{"text": "a"}\n,\n\n{"text": "b"}\n]\n',
    "an indented record": '{\n  "text": "a",\n  "more": [\n    {"text": "b"}\n  ],\n  "id":\n{"text": "c"}\n}\n',
    "a record cut within an array": '{"text": "a", "more": [\n{"text": "b"}\n',
}


@pytest.mark.parametrize("what", PARTS)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_no_part_of_a_record_over_several_lines_is_a_document(tmp_path: Path, what: str, ending: str) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    whole = ['{"text": "before, [1:"}\n', '{"text": "after"}\n']
    path.write_bytes(COMPRESSORS[ending](PARTS[what].join(whole).encode()))
    records = read(path)
    assert [record.text for record in records if isinstance(record, Document) and not record.is_blank] == [
        "before, [1:",
        "after",
    ]
    first = next(record for record in records if isinstance(record, BadRecord))
    assert (first.number, first.kind) == (2, "over several lines")
    assert "goes on in the next line: one object a line is wanted, as `jq -c .` writes it" in first.reason


def test_a_piece_that_begins_within_a_record_gives_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for text in ("short", "x" * 100_000):
        content = f'[\n{{"text": "{text}"}},\n{{"text": "b"}}\n]\n{{"text": "c"}}\n'
        path.write_text(content)
        pieces = [Piece(path, start, len(content), 0) for start in range(1, len(content) - 20, max(1, len(text) // 9))]
        for piece in [*pieces, Piece(path, content.index('{"text": "b"'), len(content), 0)]:
            found = [record.text for record in read_documents(piece, Reading()) if isinstance(record, Document)]
            assert found == ["c"]


def test_a_record_is_good_or_bad_wherever_a_piece_begins(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good, long = b'{"text": "good"}', b"x" * 70_000
    before = [long + b",", b'{"text": "' + long + b'"},', b'["' + long * 3 + b'",', b"[\n" + b" \n" * 40_000, b"plain,"]
    lines = b"".join(line + b"\n" + good + b"\n" + good + b"\n" for line in before)
    path.write_bytes(lines)
    starts = [0, *(start.end() for start in re.finditer(rb"[^ ]\n", lines))][:-1]
    for longest_bytes in (100_000, 1 << 20):
        reading = Reading(longest_bytes=longest_bytes)
        whole = [record[1:3] for record in read(path, reading)]
        cut = [
            record[1:3]
            for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)
            for record in read_documents(Piece(path, start, end, 0), reading)
        ]
        assert cut == whole
        assert sum(record == ("good", 4) for record in whole) == 7 + (longest_bytes == 100_000)


@pytest.mark.parametrize("line", ["{", "plain words,", '{"text": "a, cut,', "}", '{"text": "cut", "more'])
def test_a_bad_line_takes_no_good_one_along(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{line}\n{{"text": "good"}}\n')
    wrong, good = read(path)
    assert isinstance(wrong, BadRecord) and isinstance(good, Document) and good.text == "good"


def test_only_what_is_asked_for_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    odd = '{"text": "a", "id": 1, "id": %s, "inner": {"text": 1, "text": 2}, "x": "\\ud800"}' % ("9" * 5000)
    path.write_text(odd + "\n")
    (record,) = read(path)
    assert isinstance(record, Document) and (record.text, str(record.fields["id"])) == ("a", "9" * 5000)
    (wrong,) = bad(path, Reading(metadata_keys=("id",)))
    assert (wrong.kind, wrong.reason) == ("key twice", "has the key 'id' more than once")


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
@pytest.mark.parametrize("ending", COMPRESSORS)
def test_a_file_of_no_bytes_holds_nothing_as_an_archive_of_nothing(tmp_path: Path, kind: str, ending: str) -> None:
    path = tmp_path / f"a{kind}{ending}"
    path.touch()
    account = BadRecords("stop", None)
    assert not list(documents_of([path], Reading(), account)) and account.empty_files == [str(path)]
    if kind == ".jsonl":
        path.write_bytes(COMPRESSORS[ending](b""))
        assert not list(documents_of([path], Reading(), account)) and len(account.empty_files) == 2


def test_the_names_of_folders_give_what_is_asked_for_and_the_record_lacks(tmp_path: Path) -> None:
    folder = tmp_path / "lang=de" / "day=2024%2D05" / "none=__HIVE_DEFAULT_PARTITION__" / "=x"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"text": "a"}\n{"text": "b", "lang": "fr"}\n')
    (folder / "a.txt").write_text("c")
    parquet.write_table(pa.table({"text": ["d"], "id": [1]}), folder / "a.parquet")
    reading = Reading(metadata_keys=("lang", "day", "none", "id"))
    rest = {"day": "2024-05", "none": None}
    a, b = read(folder / "a.jsonl", reading)
    (c,), (d,) = read(folder / "a.txt", reading), read(folder / "a.parquet", reading)
    assert isinstance(a, Document) and a.fields == {"text": "a", "lang": "de", **rest}
    assert isinstance(b, Document) and b.fields == {"text": "b", "lang": "fr", **rest} and b.of_folder == rest
    assert isinstance(c, Document) and c.fields == {"text": "c", "lang": "de", **rest}
    assert isinstance(d, Document) and d.fields == {"text": "d", "id": 1, "lang": "de", **rest}
    assert [getattr(record, "fields", None) for record in read(folder / "a.jsonl")][0] == {"text": "a"}


def test_a_key_whose_letters_are_composed_otherwise_is_named_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"U\u0308ber": "x"}\n')
    assert bad(path, Reading(("\u00dcber",)))[0].reason.endswith(r"; is 'U\u0308ber' meant?)")
