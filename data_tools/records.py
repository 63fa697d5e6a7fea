"""Pieces of files to documents, and the records that are none.

A `.jsonl` file holds one JSON object a line and a `.parquet` file one row a document, the text under one key or
several; a `.txt` file is one document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

from attnres_train.data.manifest import Options
from data_tools.bad_records import KEY_MISSING, UNREADABLE, BadRecords, SkippedRecord, Unreadable
from data_tools.content import MARKS, not_utf8_but
from data_tools.inputs import compression_of, kind_of
from data_tools.json_lines import goes_on, json_kind, json_object, lookalike
from data_tools.pieces import MIB, Piece
from data_tools.progress import Tell
from data_tools.streams import TooLong, check_to_its_end, open_stream, read_lines, skip_line

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MOST_NULS = 1 / 4
"""Share of a text file beyond which it is taken for UTF-16 without a mark, whose ASCII is valid UTF-8 with NULs."""
LOOK_BACK = 64 << 10
"""Bytes before a piece that are looked at first."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""How folders are called that hold the rows without a value."""


@dataclass(frozen=True)
class Reading:
    """How records become documents.

    The texts under `text_keys` are joined by `joiner`. A record beyond `longest_bytes` is a bad one, so that
    memory is bounded.
    """

    text_keys: tuple[str, ...] = ("text",)
    metadata_keys: tuple[str, ...] | None = ()
    """What else is asked for, in the record or in the names of its folders; None for all columns of a `.parquet`."""
    joiner: str = "\n\n"
    longest_bytes: int = 4 * MIB

    def options(self) -> Options:
        """As a manifest keeps it."""
        metadata, joiner = list(self.metadata_keys or ()), self.joiner if len(self.text_keys) > 1 else None
        longest = self.longest_bytes // MIB
        return {"text_keys": list(self.text_keys), "joiner": joiner, "longest_mib": longest, "metadata": metadata}

    @classmethod
    def of(cls, options: Options) -> Reading:
        """From what a manifest keeps; its version 1 had one key, under another name."""
        keys = options.get("text_keys", [str(options.get("text_key", "text"))])
        longest, joiner, metadata = options.get("longest_mib"), options.get("joiner"), options.get("metadata")
        return cls(
            tuple(map(str, keys)) if isinstance(keys, list) else ("text",),
            metadata_keys=tuple(map(str, metadata)) if isinstance(metadata, list) else (),
            joiner=joiner if isinstance(joiner, str) else cls.joiner,
            longest_bytes=longest * MIB if isinstance(longest, int) else cls.longest_bytes,
        )


class Document(NamedTuple):
    """One record as read: `number` counts lines or rows of the piece from 1."""

    number: int
    text: str
    """"" for a blank line"""
    text_bytes: int
    """in UTF-8"""
    raw: bytes
    """the line; empty for other kinds"""
    fields: dict[str, Any]
    """the whole JSON object, or the row, and `of_folder`"""
    of_folder: dict[str, str | None] = {}  # noqa: RUF012 - never changed
    """what was asked for and stands not in the record but in the names of its folders"""

    @property
    def is_blank(self) -> bool:
        return not self.text or self.text.isspace()


class BadRecord(NamedTuple):
    """A record that could not be read: `number` as in Document, None for the whole file."""

    number: int | None
    kind: str
    """The reason in a word or two, to count by."""
    reason: str
    records: int = 1
    """how many are lost with it; more for the lines of a damaged archive"""


Advance = Callable[[int], None]
"""Told how many more bytes were read from disk."""


def read_documents(piece: Piece, reading: Reading, advance: Advance | None = None) -> Iterator[Document | BadRecord]:
    """The records of `piece` in order: each a document, or why it is none. A file of no bytes holds no lines or rows.

    A file that is damaged ends with a bad record of kind "unreadable"; of one that is compressed nothing else is
    yielded. What is wrong with a whole file is told by its first piece.
    """
    read = {".jsonl": _read_lines, ".txt": _read_whole, ".parquet": _read_rows}[kind_of(piece.path)]
    tell = advance or (lambda amount: None)
    asked = reading.metadata_keys or ()
    folder = {name: value for name, value in partition_of(piece.path).items() if name in asked}
    if kind_of(piece.path) != ".txt" and _is_empty(piece.path):
        return
    number: int | None = None
    try:
        for record in read(piece, reading, tell):
            number = record.number
            yield _with_folder(record, folder) if folder and isinstance(record, Document) else record
    except Unreadable as error:
        reason = f"cannot be read to its end: {error}" if error.kind == UNREADABLE else str(error)
        if not piece.start or not error.of_file:
            place = None if number is None or error.of_file else number + 1
            yield BadRecord(place, error.kind, reason, error.records)


def documents_of(
    files: Sequence[Path], reading: Reading, bad: BadRecords, tell: Tell | None = None
) -> Iterator[Document]:
    """The documents of whole `files`, one after the other in this process, blank ones too; `bad` is told the others."""
    read_bytes = 0

    def advance(amount: int) -> None:
        nonlocal read_bytes
        read_bytes += amount
        if tell is not None:
            tell(read_bytes, 0)

    for path in files:
        record: Document | BadRecord | None = None
        for record in read_documents(Piece(path, None, None, 0), reading, advance):
            if isinstance(record, BadRecord):
                bad.add(SkippedRecord(str(path), *record))
            else:
                if record.is_blank:
                    bad.blank_documents += 1
                    bad.add_blank(str(path), record.number)
                yield record
        if record is None:
            bad.empty_files.append(str(path))


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False  # whoever opens it will say what is wrong


def partition_of(path: Path) -> dict[str, str | None]:
    """Columns that stand in the names of folders, such as `lang=de/`, as Spark, Hive and Dask write them."""
    columns = [part.split("=", 1) for part in path.parent.parts if "=" in part.lstrip("=")]
    return {name: None if value == NO_VALUE else unquote(value) for name, value in columns}


def _with_folder(document: Document, folder: dict[str, str | None]) -> Document:
    lacking = {name: value for name, value in folder.items() if name not in document.fields}
    return document._replace(fields=document.fields | lacking, of_folder=lacking)


def _read_lines(piece: Piece, reading: Reading, advance: Advance) -> Iterator[Document | BadRecord]:
    if compression_of(piece.path):
        check_to_its_end(piece.path)
    with open_stream(piece.path) as (disk, stream):
        if piece.start:
            # The line that a piece begins inside belongs to the piece before.
            stream.seek(piece.start - 1)
            skip_line(stream)
        plain = stream is disk
        position = reported = disk.tell() if plain else 0
        if plain and piece.end is not None and position >= piece.end:
            return
        is_part = _goes_on_before(stream, reading.longest_bytes) if piece.start else False
        for number, line in enumerate(read_lines(stream, reading.longest_bytes), start=1):
            yield _line_record(number, line, reading, is_part)
            is_part = bool(_goes_on_after(line, is_part))
            position = position + (line.bytes if isinstance(line, TooLong) else len(line)) if plain else disk.tell()
            if position != reported:
                advance(position - reported)
                reported = position
            if plain and piece.end is not None and position >= piece.end:
                return


def _goes_on_after(line: bytes | TooLong, is_part: bool | None) -> bool | None:
    """Whether a value goes on after `line`, which `is_part` of one itself."""
    if isinstance(line, TooLong):
        return False
    return goes_on(line) if line.strip() else is_part


def _goes_on_before(stream: BinaryIO, longest_bytes: int) -> bool:
    """Whether a value goes on where `stream` stands, at the beginning of a line: what reading the file from its
    beginning would say, known from the last line that is not blank, for which it is read from ever further before."""
    position, looked = stream.tell(), LOOK_BACK
    is_part: bool | None = None
    while is_part is None:
        start = stream.seek(max(0, position - looked))
        if start:
            skip_line(stream)
        else:
            is_part = False
        lines = read_lines(stream, longest_bytes)
        while stream.tell() < position:
            is_part = _goes_on_after(next(lines), is_part)
        looked *= 4
    return is_part


def _line_record(number: int, line: bytes | TooLong, reading: Reading, is_part: bool) -> Document | BadRecord:
    try:
        if isinstance(line, TooLong):
            raise _too_large(line.bytes, reading)
        content = line.removeprefix(BYTE_ORDER_MARK).rstrip(b"\r\n")
        if not content.strip():
            return Document(number, "", 0, line, {})
        fields = json_object(_decode(content), (*reading.text_keys, *(reading.metadata_keys or ())), is_part)
        text, size = _join(fields, reading)
        return Document(number, text, size, line, fields)
    except Unreadable as error:
        return BadRecord(number, error.kind, str(error))


def _read_whole(piece: Piece, reading: Reading, advance: Advance) -> Iterator[Document | BadRecord]:
    with open_stream(piece.path) as (disk, stream):
        data = stream.read(reading.longest_bytes + 1)
        try:
            if len(data) > reading.longest_bytes:
                raise _too_large(piece.path.stat().st_size if stream is disk else None, reading)
            text = _decode(data.removeprefix(BYTE_ORDER_MARK))
            if data.count(0) > MOST_NULS * len(data):
                what = f"{data.count(0)} of {len(data)} bytes are NUL: UTF-16 without a mark?"
                raise Unreadable("not UTF-8", what)
            yield Document(1, text, len(data.removeprefix(BYTE_ORDER_MARK)), b"", {"text": text})
        except Unreadable as error:
            yield BadRecord(None, error.kind, str(error))
        advance(piece.path.stat().st_size)


def _read_rows(piece: Piece, reading: Reading, advance: Advance) -> Iterator[Document | BadRecord]:
    from data_tools.parquet import read_rows

    rows = read_rows(piece, reading.text_keys, reading.metadata_keys, reading.longest_bytes, advance)
    for number, row in enumerate(rows, start=1):
        try:
            if isinstance(row, TooLong):
                raise _too_large(row.bytes, reading)
            fields = row | {key: None if row[key] is None else _decode(row[key]) for key in reading.text_keys}
            text, size = _join(fields, reading)
            yield Document(number, text, size, b"", fields)
        except Unreadable as error:
            yield BadRecord(number, error.kind, str(error))


def _too_large(size: int | None, reading: Reading) -> Unreadable:
    holds = "holds more than" if size is None else f"holds {size / MIB:,.1f} MiB, more than"
    limit = reading.longest_bytes / MIB
    return Unreadable("too large", f"{holds} the {limit:g} MiB that one record may have (--longest-mib)")


def _decode(data: bytes) -> str:
    for mark, name in MARKS.items():
        if data.startswith(mark):
            raise Unreadable("not UTF-8", not_utf8_but(name))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable("not UTF-8", f"not UTF-8: byte {error.start} is 0x{data[error.start]:02x}") from None


def _join(fields: dict[str, Any], reading: Reading) -> tuple[str, int]:
    """The text of a record and its size in UTF-8."""
    for key in reading.text_keys:
        if key not in fields:
            keys = ", ".join(sorted(fields)[:10]) or "none"
            raise Unreadable(KEY_MISSING, f"has no key {key!r} (its keys: {keys}{lookalike(key, fields)})")
        if fields[key] is None:
            raise Unreadable("null", f"the value of {key!r} is null")
        if not isinstance(fields[key], str):
            raise Unreadable("not a string", f"the value of {key!r} is no string but {json_kind(fields[key])}")
    # Parts without text would only leave joiners behind.
    texts = [fields[key] for key in reading.text_keys]
    text = texts[0] if len(texts) == 1 else reading.joiner.join(filter(None, texts))
    try:
        return text, len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        what = f"not Unicode text: lone surrogate U+{code:04X} at character {error.start}"
        raise Unreadable("lone surrogate", what) from None
