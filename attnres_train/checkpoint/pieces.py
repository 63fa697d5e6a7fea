"""The pieces of tensors in `.distcp` files, read element by element: torch's reader takes a piece as a whole.

A piece is an archive of `torch.save` inside the file, with the elements end to end in it. What the archive says of them
is read in torch's safe mode, onto the device `meta`, which reads no element and tells where they begin.
"""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres_train.checkpoint.plain import NotPlain, why_not_loaded

_FP32_BYTES = 4
_MOST_OPEN = 64
"""Files at once: a run of thousands of ranks writes thousands of files, and a process may open about a thousand."""


class Place(NamedTuple):
    """Where the archive of a piece lies."""

    file: str
    offset: int
    length: int


class PieceFiles:
    """The files of a checkpoint; those that were used last are open. Close by leaving its context."""

    def __init__(self, folder: Path, files: Collection[str]):
        """It opens only `files`, those of the manifest, which have been held against their checksums."""
        self._folder, self._files = folder, files
        self._open = OrderedDict[str, int]()

    def __enter__(self) -> PieceFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def begin(self, place: Place, sizes: Sequence[int]) -> int:
        """The byte of the file at which the elements of a piece of `sizes` begin.

        Raises NotPlain where there is anything but such a piece of fp32.
        """
        archive: Any = _Archive(self._descriptor(place.file), place)
        try:
            piece = torch.load(archive, map_location="meta", weights_only=True)
        except Exception as error:
            raise NotPlain(f"{place.file} {why_not_loaded(error)}") from error
        if not isinstance(piece, Tensor):
            raise NotPlain(f"{place.file} holds a {type(piece).__name__} in the place of a tensor")
        if (tuple(piece.shape), piece.dtype, piece.is_contiguous()) != (tuple(sizes), torch.float32, True):
            raise NotPlain(f"{place.file} holds {piece.dtype} of shape {tuple(piece.shape)} in the place of {sizes}")
        begin = int(piece.untyped_storage()._checkpoint_offset or 0) + _FP32_BYTES * int(piece.storage_offset())
        if begin + _FP32_BYTES * piece.numel() > place.length:
            raise NotPlain(f"{place.file} ends before the elements of a piece do")
        return place.offset + begin

    def read(self, file: str, begin: int, into: Tensor) -> None:
        """Fill `into`, flat fp32 in host memory, from the byte `begin` on. Raises OSError or NotPlain."""
        elements: Any = into.numpy()
        rest, descriptor = memoryview(elements).cast("B"), self._descriptor(file)
        while rest:  # one call reads at most 2 GiB
            if not (count := os.preadv(descriptor, [rest], begin)):
                raise NotPlain(f"{file} ends before a piece of it does")
            rest, begin = rest[count:], begin + count

    def _descriptor(self, file: str) -> int:
        if file not in self._open:
            if file not in self._files:
                raise NotPlain(f"{file} is no file of the checkpoint")
            if len(self._open) == _MOST_OPEN:
                os.close(self._open.popitem(last=False)[1])
            self._open[file] = os.open(self._folder / file, os.O_RDONLY)
        self._open.move_to_end(file)
        return self._open[file]


class _Archive(io.RawIOBase):
    """A part of an open file, as a file."""

    def __init__(self, descriptor: int, place: Place):
        self._descriptor, self._place, self._at = descriptor, place, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._place.length}[whence]
        return self._at

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def, override]
        wanted = memoryview(buffer).cast("B")[: max(0, self._place.length - self._at)]
        count = os.preadv(self._descriptor, [wanted], self._place.offset + self._at) if wanted else 0
        self._at += count
        return count
