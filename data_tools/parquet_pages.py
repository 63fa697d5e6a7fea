"""What the pages of a Parquet column take in memory, by their headers: known before any of them is decoded.

A header is a struct of thrift's compact protocol, read here to the little that is asked of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

HEADER_BYTES = 1 << 12
"""What a header is expected to fit in; statistics may make it longer."""
LONGEST_HEADER_BYTES = 1 << 24
TYPE, UNCOMPRESSED_BYTES, COMPRESSED_BYTES = 1, 2, 3
"""Fields of a header."""
DICTIONARY = 2
"""The type of a page that holds the values that others refer to."""


def first_byte(column: Any) -> int:
    """Where the pages of a column of a row group begin: some writers give a dictionary that is not there."""
    data, dictionary = int(column.data_page_offset), int(column.dictionary_page_offset or 0)
    return dictionary if 0 < dictionary < data else data


@dataclass(frozen=True)
class Pages:
    """Bytes of a column of a row group: `value` of the largest value there can be, `held` while one is decoded."""

    value: int
    held: int


def pages_of(descriptor: int, column: Any) -> Pages:
    """What the pages of a column of a row group take.

    No value is larger than the page or the dictionary that it lies in. A page is held compressed and uncompressed, a
    dictionary twice. What cannot be followed to its end counts as far as it goes: decoding will tell the damage.
    """
    at = first_byte(column)
    end = at + column.total_compressed_size
    largest = dictionary = value = 0
    while at < end:
        header, size = _header(descriptor, at)
        compressed, uncompressed = header.get(COMPRESSED_BYTES, 0), header.get(UNCOMPRESSED_BYTES, 0)
        if not size or compressed < 0:
            break
        value = max(value, uncompressed)
        if header.get(TYPE) == DICTIONARY:
            dictionary = max(dictionary, 2 * uncompressed)
        else:
            largest = max(largest, compressed + uncompressed)
        at += size + compressed
    return Pages(value, largest + dictionary)


def _header(descriptor: int, at: int) -> tuple[dict[int, int], int]:
    """The whole numbers of the header at byte `at`, and its bytes; nothing where there is none."""
    wanted = HEADER_BYTES
    while wanted <= LONGEST_HEADER_BYTES:
        data = os.pread(descriptor, wanted, at)
        try:
            return _struct(data, 0)
        except IndexError:
            if len(data) < wanted:
                break
            wanted *= 64
        except RecursionError:
            break
    return {}, 0


def _struct(data: bytes, at: int) -> tuple[dict[int, int], int]:
    fields: dict[int, int] = {}
    number = 0
    while kind := data[at]:
        delta, kind = kind >> 4, kind & 15
        at += 1
        if delta:
            number += delta
        else:
            number, at = _number(data, at)
        if kind in (1, 2):  # true and false are in the kind
            continue
        value, at = _value(data, at, kind)
        if value is not None:
            fields[number] = value
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[int | None, int]:
    """A value and where the next begins; None for what is no whole number."""
    match kind:
        case 4 | 5 | 6:
            return _number(data, at)
        case 1 | 2 | 3:
            at += 1
        case 7:
            at += 8
        case 8:
            size, at = _varint(data, at)
            at += size
        case 9 | 10:
            at = _items(data, at + 1, data[at] >> 4, (data[at] & 15,))
        case 11:
            size, at = _varint(data, at)
            if size:
                at = _items(data, at + 1, size, (data[at] >> 4, data[at] & 15))
        case 12:
            _, at = _struct(data, at)
        case _:
            raise IndexError(f"thrift has no kind {kind}")
    if at > len(data):
        raise IndexError("beyond what was read")
    return None, at


def _items(data: bytes, at: int, size: int, kinds: tuple[int, ...]) -> int:
    """Where `size` times values of `kinds` end; 15 says that the size follows."""
    if size == 15 and len(kinds) == 1:
        size, at = _varint(data, at)
    for _ in range(size):
        for kind in kinds:
            _, at = _value(data, at, kind)
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at
        shift += 7


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A whole number, its sign in the lowest bit."""
    found, at = _varint(data, at)
    return (found >> 1) ^ -(found & 1), at
