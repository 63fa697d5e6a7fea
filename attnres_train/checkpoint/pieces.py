"""The pieces of tensors in `.distcp` files, read element by element: torch's reader takes a piece as a whole.

A piece is an archive of `torch.save` inside the file, with the elements end to end in it. What the archive says of them
is read in torch's safe mode, onto the device `meta`, which reads no element and tells where they begin.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.utils import _create_file_view

from attnres_train.checkpoint.plain import NotPlain, why_not_loaded

FP32_BYTES = 4
_BLOCK_BYTES = 4 << 20
_MOST_OPEN = 64
"""Files at once: a run of thousands of ranks writes thousands of files, and a process may open about a thousand."""


class PieceFiles:
    """The files of a checkpoint; those that were used last are open, until `close`."""

    def __init__(self, folder: Path, files: Collection[str]):
        """It opens only `files`, those of the manifest, which have been held against their checksums."""
        self._folder, self._files = folder, files
        self._open = dict[str, io.FileIO]()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def begin(self, file: str, offset: int, length: int, sizes: Sequence[int]) -> int:
        """The byte of `file` at which the elements of a piece of `sizes` begin, whose archive is `length` bytes from
        `offset` on.

        Raises NotPlain where there is anything but such a piece of fp32.
        """
        try:
            archive: Any = _create_file_view(self._opened(file), offset, length)
            piece = torch.load(archive, map_location="meta", weights_only=True)
        except NotPlain:
            raise
        except Exception as error:
            raise NotPlain(f"{file} {why_not_loaded(error)}") from error
        if not isinstance(piece, Tensor):
            raise NotPlain(f"{file} holds a {type(piece).__name__} in the place of a tensor")
        if (tuple(piece.shape), piece.dtype, piece.is_contiguous()) != (tuple(sizes), torch.float32, True):
            raise NotPlain(f"{file} holds {piece.dtype} of shape {tuple(piece.shape)} in the place of {tuple(sizes)}")
        begin = int(piece.untyped_storage()._checkpoint_offset or 0) + FP32_BYTES * int(piece.storage_offset())
        if begin + FP32_BYTES * piece.numel() > length:
            raise NotPlain(f"{file} ends before the elements of a piece do")
        return offset + begin

    def read(self, name: str, begin: int, into: Tensor) -> None:
        """Fill `into`, flat fp32 in host memory, from the byte `begin` on. Raises OSError or NotPlain."""
        if self._fill(name, begin, bytes_of(into)):
            raise NotPlain(f"{name} ends before a piece of it does")

    def blocks(self, name: str, begin: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """The bytes `begin` to `end`, as far as they are there, with their places. Raises OSError."""
        while begin < end:
            block = memoryview(bytearray(min(_BLOCK_BYTES, end - begin)))
            missing = self._fill(name, begin, block)
            if missing < len(block):
                yield begin, block[: len(block) - missing]
            begin = end if missing else begin + len(block)

    def _fill(self, name: str, begin: int, into: memoryview) -> int:
        """Bytes that are missing at the end of the file."""
        file = self._opened(name)
        try:
            file.seek(begin)
            while into and (count := file.readinto(into)):  # one call reads at most 2 GiB
                into = into[count:]
        except OSError as error:
            raise OSError(error.errno, error.strerror, name) from error
        return len(into)

    def _opened(self, name: str) -> io.FileIO:
        if name not in self._files:
            raise NotPlain(f"{name} is no file of the checkpoint")
        file = self._open.pop(name, None) or open(self._folder / name, "rb", buffering=0)
        self._open[name] = file  # the last in the order of use
        if len(self._open) > _MOST_OPEN:
            self._open.pop(next(iter(self._open))).close()
        return file


def bytes_of(flat: Tensor) -> memoryview:
    """Those of a flat tensor in host memory, to read or to write."""
    elements: Any = flat.numpy()
    return memoryview(elements).cast("B")
