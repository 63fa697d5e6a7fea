"""Telling two files of the same size apart without reading all of them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attnres_train.data.order import derive_keys

BLOCK = 1 << 16
"""Bytes read at one place."""
_WHOLE_UP_TO = 64
_MORE_A_DOUBLING = 16


def drawn_blocks(blocks: int, draw: int) -> npt.NDArray[np.int64]:
    """Which of `blocks` blocks are read: all of a small file, some hundred of the largest.

    The file is cut into parts of equal length, and in each of them `draw` chooses one block: whatever changed over
    more than two parts is found for certain, a change everywhere by the first block.
    """
    doublings = max(0, (blocks // _WHOLE_UP_TO).bit_length())
    parts = min(blocks, _WHOLE_UP_TO + _MORE_A_DOUBLING * doublings)
    edges = np.arange(parts + 1, dtype=np.int64) * blocks // max(1, parts)
    keys, sizes = derive_keys(draw, np.arange(parts, dtype=np.uint64)), np.diff(edges).astype(np.uint64)
    return edges[:-1] + (keys % sizes).astype(np.int64)


def drawn_digest(path: Path, draw: int) -> str:
    """SHA-256 over the blocks of `path` that `draw` chooses, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for block in drawn_blocks(-(-size // BLOCK), draw).tolist():
            digest.update(os.pread(file.fileno(), BLOCK, block * BLOCK))
    return digest.hexdigest()
