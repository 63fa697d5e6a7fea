"""CRC-32 as arithmetic: of a file from the checksums of its parts, in any order and by whoever read them. Pure.

A CRC is the remainder of a polynomial over GF(2), and so linear: that of a file is the sum (`^`) of those of its parts,
each moved to its place by x to the power of the bits behind it. Bits are reflected as in RFC 1952 (zlib, gzip): the
highest is x**0, and `_POLYNOMIAL` is x**32 modulo the generator.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import lru_cache

_POLYNOMIAL = 0xEDB88320
_ONE, _BYTE = 1 << 31, 1 << 23
"""x**0 and x**8."""
_ALL = 0xFFFFFFFF


def remainder(data: bytes | memoryview) -> int:
    """Of `data` alone: zlib's checksum without what it adds at both ends."""
    return zlib.crc32(data, _ALL) ^ _ALL


def moved(remainder: int, by_bytes: int) -> int:
    """The remainder of the same data with `by_bytes` zeros behind."""
    return _product(_power(by_bytes), remainder)


def crc_of(remainder: int, size_bytes: int) -> int:
    """zlib's checksum of a file of that remainder and size."""
    return remainder ^ moved(_ALL, size_bytes) ^ _ALL


def sum_of(parts: Iterable[tuple[int, memoryview]], size_bytes: int) -> int:
    """The remainder of a file of `size_bytes` that is zero outside `parts`: places and bytes, ascending, apart.

    Rows of a matrix are parts at equal distances: each costs one product.
    """
    found, end = 0, 0
    for begin, data in parts:
        found = moved(found, begin + len(data) - end) ^ remainder(data)
        end = begin + len(data)
    return moved(found, size_bytes - end)


def _product(a: int, b: int) -> int:
    """Of two polynomials, modulo the generator."""
    found, bit = 0, _ONE
    while a:
        if a & bit:
            found ^= b
            a ^= bit
        bit >>= 1
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return found


@lru_cache(maxsize=4096)
def _power(count: int) -> int:
    """x**8 to the power `count`."""
    found, base = _ONE, _BYTE
    while count:
        if count & 1:
            found = _product(base, found)
        base = _product(base, base)
        count >>= 1
    return found
