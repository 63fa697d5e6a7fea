"""Slices that wait in host memory between the forward and the backward that need them.

Everybody who holds a source (the kernels' saved tensors, recomputed layers, later stages) holds the same storage. So
it is the storage that is emptied and filled again, and nobody needs to know.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class HostOffload:
    """Moves storages between the device and (pinned) host memory, in the order of the device's current stream."""

    def __init__(self) -> None:
        self._parked: dict[int, Tensor] = {}

    def park(self, tensors: Iterable[Tensor], in_use: Iterable[Tensor] = ()) -> None:
        """Empty the storages of `tensors`, which must not be read or written until they are fetched; not those that
        `in_use` shares."""
        stay = {tensor.untyped_storage()._cdata for tensor in in_use}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata in self._parked or storage._cdata in stay or storage.nbytes() == 0:
                continue
            host = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=tensor.is_cuda)
            host.copy_(_bytes_of(tensor), non_blocking=True)
            storage.resize_(0)
            self._parked[storage._cdata] = host

    def fetch(self, tensors: Iterable[Tensor]) -> None:
        """Fill the storages of those `tensors` that are parked."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            host = self._parked.pop(storage._cdata, None)
            if host is not None:
                storage.resize_(host.numel())
                _bytes_of(tensor).copy_(host, non_blocking=True)

    def clear(self) -> None:
        self._parked.clear()

    @property
    def parked_bytes(self) -> int:
        return sum(host.numel() for host in self._parked.values())


def _bytes_of(tensor: Tensor) -> Tensor:
    """The whole storage of `tensor` as bytes."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)  # type: ignore[call-overload, no-any-return]
