"""Rows of a `.parquet` file, a few at a time; only the columns asked for are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import parquet

from data_tools.bad_records import KEY_MISSING, UNREADABLE, Unreadable
from data_tools.inputs import compression_of
from data_tools.parquet_pages import first_byte, pages_of
from data_tools.pieces import MIB, Piece
from data_tools.streams import READ_BYTES, TooLong, is_damage, open_seekable

BATCH_ROWS = 32
"""Rows that are held at once, where they are small."""
BATCH_BYTES = 32 << 20
"""What these may take, by the pages they lie in."""
WIDEST_BYTES = 8
"""Of a number, a date, or the place of a text."""
TEXT_TYPES = {pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()}
SIZED_BY_VALUE = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
PAGES_A_RECORD = 32
"""A row group is read where decoding its pages takes at most so many times the longest record."""


def group_sizes(path: Path) -> tuple[tuple[int, int], ...] | None:
    """Rows of each row group, and bytes on disk from its begin to that of the next, the first from that of the file.

    None for a file that cannot be cut so: compressed as a whole, encrypted, with groups in another order, or damaged.
    """
    if compression_of(path):
        return None
    try:
        with _opened(path) as (file, disk):
            if not file.num_row_groups or not file.metadata.num_columns or _is_encrypted(file, disk):
                return None
            groups = _groups(file)
            starts = [min(first_byte(group.column(i)) for i in range(group.num_columns)) for group in groups]
            edges = [0, *starts[1:], path.stat().st_size]
            sizes = [end - start for start, end in pairwise(edges)]
            found = tuple((group.num_rows, size) for group, size in zip(groups, sizes, strict=True))
            return found if min(sizes) > 0 else None
    except Unreadable:
        # Whoever reads it will meet and tell the damage.
        return None


def _groups(file: parquet.ParquetFile) -> list[Any]:
    return [file.metadata.row_group(number) for number in range(file.num_row_groups)]


def _is_encrypted(file: parquet.ParquetFile, disk: BinaryIO) -> bool:
    """Whether some columns may be: to ask what the footer says about these ends the process.

    Of such a file a signature follows what the footer holds.
    """
    size = os.fstat(disk.fileno()).st_size
    return int.from_bytes(os.pread(disk.fileno(), 4, size - 8), "little") != file.metadata.serialized_size


@contextmanager
def _opened(path: Path) -> Iterator[tuple[parquet.ParquetFile, BinaryIO]]:
    try:
        with open_seekable(path) as disk:
            # Checksums of pages are compared where there are any.
            options = {"buffer_size": READ_BYTES, "pre_buffer": False, "page_checksum_verification": True}
            yield parquet.ParquetFile(disk, **options), disk
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and not is_damage(error):
            raise
        raise Unreadable(UNREADABLE, " ".join(str(error).split())) from error


def read_rows(
    piece: Piece,
    text_columns: Sequence[str],
    other_columns: Sequence[str] | None,
    longest_bytes: int,
    advance: Callable[[int], None],
) -> Iterator[dict[str, Any] | TooLong]:
    """The rows of `piece`: of text columns the bytes as stored, or None for null; of others, None for all, the
    Python value.

    Of a row whose texts, or whose others, are beyond `longest_bytes`, the size. Raises Unreadable for a damaged
    file, with the rows that are lost, for a missing column, a text column that holds no text, and pages too large.
    """
    rows = told = done = 0
    try:
        with _opened(piece.path) as (file, disk):
            names = file.schema_arrow.names
            others = names if other_columns is None else [name for name in other_columns if name in names]
            _check_columns(file, text_columns, others)
            columns = list(dict.fromkeys([*text_columns, *others]))
            start, end = piece.start or 0, file.num_row_groups if piece.end is None else piece.end
            rows = sum(group.num_rows for group in _groups(file)[start:end])
            for number in range(start, end):
                at_once = _rows_at_once(file, disk, number, columns, longest_bytes)
                for batch in file.iter_batches(at_once, row_groups=[number], columns=columns):
                    yield from _rows(batch, text_columns, longest_bytes)
                    done += batch.num_rows
                    now = piece.bytes * done // max(1, rows)
                    advance(now - told)
                    told = now
    except Unreadable as error:
        if error.of_file or rows - done <= 1:
            raise
        what = f"{error}; the {rows - done:,} rows from there on are left out with it"
        raise Unreadable(error.kind, what, records=rows - done) from error


def _rows_at_once(
    file: parquet.ParquetFile, disk: BinaryIO, number: int, columns: Sequence[str], longest_bytes: int
) -> int:
    """How many rows of a row group may be decoded together.

    Raises Unreadable where its pages alone take too much.
    """
    if _is_encrypted(file, disk):
        return 1
    group = file.metadata.row_group(number)
    held = values = 0
    for index in range(group.num_columns):
        column = group.column(index)
        if any(column.path_in_schema == name or column.path_in_schema.startswith(f"{name}.") for name in columns):
            pages = pages_of(disk.fileno(), column)
            if file.schema.column(index).max_repetition_level:  # a row of a list may have all the values
                values += max(pages.value, WIDEST_BYTES * column.num_values)
                held += WIDEST_BYTES * column.num_values // max(1, group.num_rows)
            else:
                values += pages.value if column.physical_type in SIZED_BY_VALUE else WIDEST_BYTES
            held += pages.held
    limit = PAGES_A_RECORD * longest_bytes
    if held > limit:
        what = (
            f"row group {number} takes {held / MIB:,.1f} MiB to decode, more than the {limit / MIB:g} MiB it may take"
        )
        enough = -(-held // (PAGES_A_RECORD * MIB))
        remedy = f"write it again with fewer rows a page, or pass --longest-mib {enough}"
        raise Unreadable("too large", f"{what}: {remedy}")
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, values)))


def _check_columns(file: parquet.ParquetFile, text_columns: Sequence[str], others: Sequence[str]) -> None:
    schema = file.schema_arrow
    for name in (*text_columns, *others):
        if name not in schema.names:
            columns = ", ".join(schema.names[:10]) or "none"
            raise Unreadable(KEY_MISSING, f"has no column {name!r} (its columns: {columns})", of_file=True)
        if schema.names.count(name) > 1:
            raise Unreadable("key twice", f"has more than one column {name!r}", of_file=True)
    for name in text_columns:
        kind = schema.field(name).type
        if (kind.value_type if pa.types.is_dictionary(kind) else kind) not in TEXT_TYPES:
            raise Unreadable("not a string", f"the column {name!r} holds {kind}, no text", of_file=True)


def _rows(batch: pa.RecordBatch, text_columns: Sequence[str], longest_bytes: int) -> Iterator[dict[str, Any] | TooLong]:
    names = batch.schema.names
    columns = {name: _plain(batch.column(name), name in text_columns) for name in names}
    may_be_long = sum(column.nbytes for column in columns.values()) > longest_bytes
    for row in range(batch.num_rows):
        if may_be_long:
            size = sum(columns[name][row].as_buffer().size for name in text_columns if columns[name][row].is_valid)
            others = sum(columns[name].slice(row, 1).nbytes for name in names if name not in text_columns)
            if max(size, others) > longest_bytes:
                yield TooLong(max(size, others))
                continue
        yield {name: _value(column[row]) for name, column in columns.items()}


def _plain(column: pa.Array, is_text: bool) -> pa.Array:
    # Text as bytes: old writers did not check that what they call a string is UTF-8.
    if is_text:
        return column.cast(pa.large_binary())
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _value(scalar: pa.Scalar) -> Any:
    """The Python value; for one that Python has none for, such as a date in the year 20000, its text."""
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.cast(pa.large_binary()).as_py().decode(errors="backslashreplace")
    except (OverflowError, ValueError):
        try:
            return scalar.cast(pa.string()).as_py()
        except (pa.ArrowException, ValueError):
            return f"unreadable {scalar.type}"
