"""Rows of a `.parquet` file, a few at a time; only the columns asked for are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from data_tools.inputs import compression_of
from data_tools.json_lines import KEY_MISSING
from data_tools.pieces import Piece
from data_tools.streams import READ_BYTES, DamagedStream, open_seekable

BATCH_ROWS = 32
"""Few, because what a row takes in memory shows only when it is there."""


def group_sizes(path: Path) -> tuple[tuple[int, int], ...] | None:
    """Rows and bytes on disk of each row group; None for a file that is compressed as a whole, or damaged."""
    if compression_of(path):
        return None
    try:
        with _opened(path) as file:
            rows, sizes = zip(*_groups(file), strict=True) if file.num_row_groups else ((), ())
            # What columns take on disk is not asked: for encrypted ones that ends the process.
            on_disk, total = path.stat().st_size, max(1, sum(sizes))
            return tuple((count, on_disk * size // total) for count, size in zip(rows, sizes, strict=True))
    except DamagedStream:
        # Whoever reads it will meet and tell the damage.
        return None


def _groups(file: parquet.ParquetFile) -> list[tuple[int, int]]:
    """Rows and bytes, before compression, of each row group."""
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    return [(group.num_rows, group.total_byte_size) for group in groups]


@contextmanager
def _opened(path: Path) -> Iterator[parquet.ParquetFile]:
    try:
        with open_seekable(path) as disk:
            yield parquet.ParquetFile(disk, buffer_size=READ_BYTES, pre_buffer=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DamagedStream(" ".join(str(error).split())) from error


def read_rows(
    piece: Piece, text_columns: Sequence[str], other_columns: Sequence[str] | None, advance: Callable[[int], None]
) -> Iterator[dict[str, Any]]:
    """The rows of `piece`: of text columns the bytes as stored, or None for null; of others the Python value.

    Raises DamagedStream for a damaged file, a missing column, and a text column that holds no text.
    """
    with _opened(piece.path) as file:
        names = file.schema_arrow.names
        others = names if other_columns is None else [name for name in other_columns if name in names]
        _check_columns(file, text_columns, others)
        start, end = piece.start or 0, file.num_row_groups if piece.end is None else piece.end
        rows = sum(count for count, _ in _groups(file)[start:end])
        told = done = 0
        columns = list(dict.fromkeys([*text_columns, *others]))
        for batch in file.iter_batches(BATCH_ROWS, row_groups=list(range(start, end)), columns=columns):
            yield from _rows(batch, text_columns)
            done += batch.num_rows
            now = piece.bytes * done // max(1, rows)
            advance(now - told)
            told = now


def _check_columns(file: parquet.ParquetFile, text_columns: Sequence[str], others: Sequence[str]) -> None:
    schema = file.schema_arrow
    for name in (*text_columns, *others):
        if name not in schema.names:
            columns = ", ".join(schema.names[:10]) or "none"
            raise DamagedStream(f"has no column {name!r} (its columns: {columns})", KEY_MISSING)
        if schema.names.count(name) > 1:
            raise DamagedStream(f"has more than one column {name!r}", "key twice")
    for name in text_columns:
        kind = schema.field(name).type
        if not _is_text(kind.value_type if pa.types.is_dictionary(kind) else kind):
            raise DamagedStream(f"the column {name!r} holds {kind}, no text", "not a string")


def _is_text(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
    )
    return any(test(kind) for test in tests)


def _rows(batch: pa.RecordBatch, text_columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    names = batch.schema.names
    # As bytes: old writers did not check that what they call a string is UTF-8.
    columns = [
        batch.column(name).cast(pa.large_binary()) if name in text_columns else batch.column(name) for name in names
    ]
    for row in range(batch.num_rows):
        yield {name: _value(column[row]) for name, column in zip(names, columns, strict=True)}


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
