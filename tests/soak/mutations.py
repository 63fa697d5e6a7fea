"""Inputs as the web and broken disks make them, and what must become of each: an oracle that reads in another way."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from backports import zstd
from pyarrow import parquet

TEXTS = (
    "The union is strong.\n\nThe people are free.",
    "caf\u00e9 \u4e2d\u6587 \u0627\u0644\u0633\u0644\u0627\u0645 \ud55c\uad6d\uc5b4 \u0e20\u0e32\u0e29\u0e32",
    "</s><s><unk><pad> [INST] <|endoftext|> {{ }} %s %00 ../../etc",
    "\u2581\u2581 sign\u2581",
    "tab\tand \u0000 NUL, \u200b\ufeff\u202e, \U0001f468\u200d\U0001f469\u200d\U0001f467", " ",
    "e\u0301 \u00e9 \ufb01 \u2460 \uff11 \u1e9b\u0323", "line\r\nline\rline\u2028line\u0085line\x0b\x0c", "x" * 3000,
    "    def f(x):\n\t    return x\n\n\n", "null", "{\"text\": \"inside\"}", "",
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """A file: its ending says how it is read."""

    ending: str
    content: bytes


def _lines(records: list[Any], ending: str = "\n") -> bytes:
    return "".join(json.dumps(record, ensure_ascii=i % 2 == 0) + ending for i, record in enumerate(records)).encode()


def _parquet(texts: list[str | None], **options: Any) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table({"text": texts, "id": range(len(texts))}), file, row_group_size=5, **options)
    return file.getvalue()


def bases() -> list[Sample]:
    """Files that are as they should be, or odd in ways of their own."""
    records: list[Any] = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
    odd = [*records[:4], {"text": None}, {"body": "x"}, ["text"], 7, *records[4:]]
    lines = _lines(records)
    text = "\n".join(TEXTS).encode()
    members = [lines[start : start + 200] for start in range(0, len(lines), 200)]
    extra = gzip.compress(lines, mtime=0)
    return [
        *(Sample(".jsonl", content) for content in (lines, _lines(odd), _lines(records, "\r\n"))),
        Sample(".jsonl", b"\xef\xbb\xbf" + lines),
        Sample(".jsonl", lines.decode().encode("utf-16")),
        Sample(".jsonl", lines.decode().encode("cp1252", errors="replace")),
        Sample(".jsonl.gz", gzip.compress(lines)),
        Sample(".jsonl.gz", b"".join(map(gzip.compress, members)) + bytes(100)),
        Sample(".jsonl.gz", extra[:3] + b"\x08" + extra[4:10] + b"name.jsonl\0" + extra[10:]),
        Sample(".jsonl.zst", zstd.compress(lines)),
        Sample(".jsonl.zst", b"".join(map(zstd.compress, members))),
        Sample(".jsonl.bz2", b"".join(map(bz2.compress, members))),
        Sample(".jsonl.xz", lzma.compress(lines) + lzma.compress(lines)),
        Sample(".txt", text),
        Sample(".txt", "caf\u00e9".encode("latin-1")),
        Sample(".txt.gz", gzip.compress(text)),
        Sample(".parquet", _parquet([*TEXTS, None])),
        Sample(".parquet", _parquet([*TEXTS], version="1.0", compression="gzip", use_dictionary=False)),
        Sample(".parquet.xz", lzma.compress(_parquet([*TEXTS]))),
    ]  # fmt: skip


def mutate(sample: Sample, chance: random.Random, others: list[Sample]) -> Sample:
    """`sample` with some bytes flipped, cut, repeated, invented, or with another file glued to it."""
    content = bytearray(sample.content)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 8))):
        place = chance.randrange(len(content) + 1)
        until = min(len(content), place + chance.choice((1, 1, 2, 10, 200)))
        match chance.choice(("flip", "flip", "cut out", "cut off", "repeat", "invent", "break", "glue")):
            case "flip" if content:
                content[min(place, len(content) - 1)] ^= 1 << chance.randrange(8)
            case "cut out":
                del content[place:until]
            case "cut off":
                del content[place:]
            case "repeat":
                content[place:place] = content[place:until]
            case "invent":
                content[place:place] = chance.randbytes(until - place)
            case "break":
                content[place:place] = chance.choice((b"\n", b"\r\n", b"\0", b'"', b"\\", b"\\ud800", b"\xed\xa0\x80"))
            case "glue":
                content += chance.choice(others).content
    return Sample(sample.ending, bytes(content) or b"\n")


@dataclass(frozen=True)
class Expected:
    """What a sample must give: the texts of all good records that are not blank, and the number of all records.

    Of an archive that `is_damaged` nothing may be had, and how many records are lost with it is not asked, so `records`
    is None. `texts` is None where the oracle cannot say.
    """

    texts: list[str] | None
    records: int | None
    is_damaged: bool = False


def expected(sample: Sample) -> Expected:
    """What must become of `sample`, found by decompressing byte by byte and reading everything at once."""
    kind, _, compression = sample.ending.removeprefix(".").partition(".")
    content, is_whole, has_junk = _decompressed(sample.content, compression)
    if not is_whole:
        return Expected(None if kind == "parquet" else [], None, is_damaged=True)
    if kind == "parquet":
        found = _expected_rows(content)
    elif kind == "txt":
        found = Expected([text] if (text := _text(content)) else [], 1)
    elif content.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")) or content.lstrip().startswith(b"<"):
        found = Expected([], 1)
    else:
        found = _expected_lines(content)
    # What follows a whole stream and is none is a bad record of its own.
    return replace(found, records=found.records + has_junk if found.records is not None else None)


def _expected_lines(content: bytes) -> Expected:
    lines = content.split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    texts, before = [], b""
    for line in lines:
        text = None if _wants_a_value(before) else _line_text(line)
        texts += [text] if text else []
        before = line if line.strip() else before
    return Expected(texts, len(lines))


def _text(content: bytes) -> str | None:
    if content.count(0) > len(content) / 4:  # taken for UTF-16 without a mark
        return None
    try:
        text = content.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError:
        return None
    is_wide = content.startswith((b"\xff\xfe", b"\xfe\xff")) or 4 * content.count(0) > len(content)
    return text if text.strip() and not is_wide else None


def _line_text(line: bytes) -> str | None:
    """The text of a good line that is not blank."""
    outermost: list[tuple[str, Any]] = []

    def watch(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        outermost[:] = pairs
        return dict(pairs)

    try:
        # Only a fault of the text counts; a number of thousands of digits is none.
        content = line.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r").decode()
        text = json.loads(content, object_pairs_hook=watch, parse_int=str)["text"]
        text.encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    texts = [value for key, value in outermost if key == "text"]
    return text if text.strip() and texts == [text] else None


def _wants_a_value(line: bytes) -> bool:
    """Whether `line` is nothing but JSON up to a comma, a colon or an opening bracket that is in no string."""
    plain, is_string, is_escaped = "", False, False
    for letter in line.decode("latin-1"):
        if is_string:
            is_string, is_escaped = is_escaped or letter != '"', letter == "\\" and not is_escaped
        else:
            is_string = letter == '"'
            plain += "" if is_string else letter
    if is_string or plain.rstrip(" \t\r\n\v\f")[-1:] not in tuple(",:["):
        return False
    rest = plain.replace("true", "").replace("false", "").replace("null", "")
    return set(rest) <= set("[]{}:,+-.eE0123456789 \t\r\n\v\f")


def _expected_rows(content: bytes) -> Expected:
    try:
        table = parquet.read_table(io.BytesIO(content), columns=["text"])
        texts = table.column("text").cast(pa.large_binary()).to_pylist()
    except (pa.ArrowException, OSError, KeyError):
        return Expected(None, None, is_damaged=True)
    good = [text for value in texts if value is not None and (text := _plain(value))]
    return Expected(good, len(texts))


def _plain(value: bytes) -> str | None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if text.strip() and not value.startswith((b"\xff\xfe", b"\xfe\xff")) else None


STARTS = {
    "gz": (b"\x1f\x8b",),
    "bz2": (b"BZh",),
    "xz": (b"\xfd7zXZ\0", b"]\0\0"),
    "zst": (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + i]) + b"\x2a\x4d\x18" for i in range(16))),
}


def _decompressed(content: bytes, compression: str) -> tuple[bytes, bool, bool]:
    """All that can be had of `content`, whether all its streams end as they should, and whether junk follows them."""
    if not compression:
        return content, True, False
    make: Callable[[], Any] = {
        "gz": lambda: zlib.decompressobj(wbits=31),
        "bz2": bz2.BZ2Decompressor,
        "xz": lzma.LZMADecompressor,
        "zst": zstd.ZstdDecompressor,
    }[compression]
    found, decompressor, is_first = bytearray(), make(), True
    left = content
    while left or is_first:
        if not is_first:
            left = left.lstrip(b"\0") if compression in ("gz", "xz") else left
            if not left or not left.startswith(STARTS[compression]):
                return bytes(found), True, bool(left)
            decompressor = make()
        is_first = False
        try:
            for place in range(len(left)):
                found += decompressor.decompress(left[place : place + 1])
                if decompressor.eof:
                    left = left[place + 1 :]
                    break
            else:
                return bytes(found), False, False
        except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, zstd.ZstdError):
            return bytes(found), False, False
    return bytes(found), True, False
