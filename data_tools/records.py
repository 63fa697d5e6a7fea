"""Files to documents, and the records that are none.

A `.jsonl` file holds one JSON object a line, its text under one key; a `.txt` file is one document.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from attnres_train.errors import refuse

CHUNK_RECORDS = 32
CHUNK_BYTES = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MOST_LISTED = 1000
"""Bad records listed one by one in a report; of more, only the number is kept."""


@dataclass(frozen=True)
class Chunk:
    """Some records that follow each other in one file, as they were read.

    `first_line` is the number of the first line, from 1; None where the one record is the whole file.
    `read_bytes` were read from disk meanwhile, compressed where the file is.
    """

    path: str
    first_line: int | None
    records: list[bytes]
    read_bytes: int


@dataclass(frozen=True)
class Document:
    """One record as read, its text ("" for a blank line), and the size of the text in UTF-8."""

    raw: bytes
    text: str
    text_bytes: int

    @property
    def is_blank(self) -> bool:
        return not self.text or self.text.isspace()


@dataclass(frozen=True)
class BadRecord:
    """Where a record could not be read, and why; `line` counts from 1, None for a whole file."""

    file: str
    line: int | None
    reason: str

    @property
    def place(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


def holds_lines(path: Path) -> bool:
    """Whether each line of the file is a record (.jsonl), rather than the whole file one."""
    return ".jsonl" in path.suffixes[-2:]


def read_chunks(files: Iterable[Path]) -> Iterator[Chunk]:
    """The records of `files` in order, in chunks of at least one.

    A chunk ends at CHUNK_RECORDS records or CHUNK_BYTES, so memory is bounded by that and the largest record.

    Raises Refused for a file that cannot be read, or is cut short or damaged inside its compression.
    """
    for path in files:
        try:
            with open(path, "rb") as disk, _decompressed(disk, path) as content:
                if holds_lines(path):
                    yield from _line_chunks(path, disk, content)
                else:
                    yield Chunk(str(path), None, [content.read().removeprefix(BYTE_ORDER_MARK)], disk.tell())
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            raise refuse(str(path), f"cannot be read to its end: {error}", "copy the file again") from error


def _decompressed(disk: IO[bytes], path: Path) -> IO[bytes]:
    match path.suffix:
        case ".gz":
            return gzip.open(disk)  # type: ignore[return-value]
        case ".xz":
            return lzma.open(disk)
        case ".bz2":
            return bz2.open(disk)
        case _:
            return disk


def _line_chunks(path: Path, disk: IO[bytes], content: IO[bytes]) -> Iterator[Chunk]:
    first_line, lines, size, reported = 1, [], 0, 0
    for number, line in enumerate(content, start=1):
        lines.append(line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line)
        size += len(line)
        if len(lines) == CHUNK_RECORDS or size >= CHUNK_BYTES:
            position = disk.tell()
            yield Chunk(str(path), first_line, lines, position - reported)
            first_line, lines, size, reported = number + 1, [], 0, position
    if lines:
        yield Chunk(str(path), first_line, lines, disk.tell() - reported)


def parse_chunk(chunk: Chunk, text_key: str) -> Iterator[Document | BadRecord]:
    """The document of each record of `chunk`, in order, or why it is none."""
    for index, record in enumerate(chunk.records):
        try:
            text = _line_text(record, text_key) if chunk.first_line is not None else _decode(record)
            yield Document(record, text, _utf8_size(text))
        except ValueError as error:
            line = None if chunk.first_line is None else chunk.first_line + index
            yield BadRecord(chunk.path, line, str(error))


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte {error.start} is 0x{data[error.start]:02x}") from None


def _line_text(line: bytes, text_key: str) -> str:
    content = _decode(line).rstrip("\r\n")
    if not content.strip():
        return ""
    try:
        record: Any = json.loads(content)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise ValueError(f"not JSON: {what} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("not usable JSON: nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object but a {type(record).__name__}")
    if text_key not in record:
        keys = ", ".join(sorted(record)[:10]) or "none"
        raise ValueError(f"has no key {text_key!r} (its keys: {keys})")
    text = record[text_key]
    if not isinstance(text, str):
        raise ValueError(f"the value of {text_key!r} is no string but a {type(text).__name__}")
    return text


def _utf8_size(text: str) -> int:
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise ValueError(f"not Unicode text: lone surrogate U+{code:04X} at character {error.start}") from None


@dataclass
class BadRecords:
    """The bad records of a run, and the policy on them.

    `stop` refuses the first; `skip` counts them, and refuses the first beyond `max_bad` where that is given.
    """

    policy: str
    max_bad: int | None
    total: int = 0
    listed: list[BadRecord] = field(default_factory=list)

    def add(self, bad: BadRecord) -> None:
        """Count one more bad record, in the order of the input.

        Raises Refused as the policy says.
        """
        self.total += 1
        if self.policy == "stop":
            raise refuse(bad.place, bad.reason, "mend the record, or pass --bad-records skip")
        if self.max_bad is not None and self.total > self.max_bad:
            what = f"{bad.reason}; this is bad record {self.total}, --max-bad allows {self.max_bad}"
            raise refuse(bad.place, what, "mend the records, or raise --max-bad")
        if len(self.listed) < MOST_LISTED:
            self.listed.append(bad)

    def report(self) -> list[dict[str, Any]]:
        """The listed bad records, for a report."""
        return [asdict(bad) for bad in self.listed]
