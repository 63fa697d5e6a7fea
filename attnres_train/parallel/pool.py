"""Receive buffers, used again: all slices of a run have one shape."""

from __future__ import annotations

import math
from collections.abc import Iterable
from weakref import WeakValueDictionary

import torch
from torch import Tensor


class BufferPool:
    """Buffers of `slice_shape`, of which at most `limit` wait to be used again.

    A buffer that nobody gives back is simply freed with its last reference.
    """

    def __init__(self, slice_shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device, limit: int):
        self.slice_shape, self.dtype, self.device, self.limit = slice_shape, dtype, device, limit
        self._free: list[Tensor] = []
        self._lent: WeakValueDictionary[int, Tensor] = WeakValueDictionary()

    @property
    def slice_bytes(self) -> int:
        return math.prod(self.slice_shape) * self.dtype.itemsize

    def take(self) -> Tensor:
        """A buffer of undefined content."""
        if self._free:
            buffer = self._free.pop()
        else:
            buffer = torch.empty(self.slice_shape, dtype=self.dtype, device=self.device)
        self._lent[id(buffer)] = buffer
        return buffer

    def give(self, tensors: Iterable[Tensor]) -> None:
        """Take back those of `tensors` that are buffers of this pool; nobody may read them any more."""
        for tensor in tensors:
            if self._lent.pop(id(tensor), None) is tensor and len(self._free) < self.limit:
                self._free.append(tensor)

    def __len__(self) -> int:
        """Buffers that wait."""
        return len(self._free)
