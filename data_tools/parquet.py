"""Rows of a `.parquet` file, a few at a time; only the columns asked for are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from data_tools.inputs import compression_of
from data_tools.pieces import Piece
from data_tools.streams import READ_BYTES, DamagedStream, open_seekable

BATCH_BYTES = 1 << 20
"""Rows are taken in batches of about so many bytes by the average of their row group."""


def group_sizes(path: Path) -> tuple[tuple[int, int], ...] | None:
    """Rows and bytes on disk of each row group; None for a file that is compressed as a whole, or damaged."""
    if compression_of(path):
        return None
    try:
        with _opened(path) as file:
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            return tuple((group.num_rows, _bytes_on_disk(group)) for group in groups)
    except DamagedStream:
        # Whoever reads it will meet and tell the damage.
        return None


def _bytes_on_disk(group: Any) -> int:
    return sum(group.column(i).total_compressed_size for i in range(group.num_columns))


@contextmanager
def _opened(path: Path) -> Iterator[parquet.ParquetFile]:
    try:
        with open_seekable(path) as disk:
            yield parquet.ParquetFile(disk, buffer_size=READ_BYTES, pre_buffer=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DamagedStream(" ".join(str(error).split())) from error


def read_rows(
    piece: Piece, text_columns: Sequence[str], other_columns: Sequence[str], advance: Callable[[int], None]
) -> Iterator[dict[str, Any]]:
    """The rows of `piece`: of text columns the bytes as stored, or None for null; of others the Python value.

    Raises DamagedStream for a damaged file, a missing column, and a text column that holds no text.
    """
    with _opened(piece.path) as file:
        columns = [*text_columns, *(name for name in other_columns if name in file.schema_arrow.names)]
        _check_columns(file, text_columns)
        for group in range(piece.start or 0, file.num_row_groups if piece.end is None else piece.end):
            rows, size = file.metadata.row_group(group).num_rows, file.metadata.row_group(group).total_byte_size
            batch_rows = max(1, min(rows, BATCH_BYTES * rows // max(1, size)))
            for batch in file.iter_batches(batch_rows, row_groups=[group], columns=list(dict.fromkeys(columns))):
                yield from _rows(batch, text_columns)
            advance(_bytes_on_disk(file.metadata.row_group(group)))


def _check_columns(file: parquet.ParquetFile, text_columns: Sequence[str]) -> None:
    schema = file.schema_arrow
    for name in text_columns:
        if name not in schema.names:
            raise DamagedStream(f"has no column {name!r} (its columns: {', '.join(schema.names[:10])})")
        if schema.names.count(name) > 1:
            raise DamagedStream(f"has more than one column {name!r}")
        kind = schema.field(name).type
        if not _is_text(kind.value_type if pa.types.is_dictionary(kind) else kind):
            raise DamagedStream(f"the column {name!r} holds {kind}, no text")


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
    for values in zip(*(column.to_pylist() for column in columns), strict=True):
        yield dict(zip(names, values, strict=True))
