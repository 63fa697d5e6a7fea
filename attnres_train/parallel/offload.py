"""Slices that wait in host memory between the forward and the backward that need them.

Everybody who holds a source (the kernels' saved tensors, recomputed layers, later stages) holds the same storage. So
it is the storage that is emptied and filled again, and nobody needs to know.

On a GPU copies run beside what is computed, on a stream of their own. A copy out begins when what was queued before it
is done (who made the slice, and who sent it); memory that it still reads is not given to others. A copy in is begun a
visit ahead (`bring`) and waited for, by the device and not by the host, when it is read (`fetch`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class Side(Protocol):
    """A stream beside the one that computes."""

    def after_compute(self) -> None:
        """What is copied from now on waits for what was queued to compute before."""

    def copying(self) -> AbstractContextManager[Any]:
        """What is queued inside is queued here."""

    def mark(self) -> Any:
        """The moment when all that was queued here is done."""

    def before_compute(self, mark: Any) -> None:
        """What is computed from now on waits for that moment."""

    def reads(self, tensor: Tensor) -> None:
        """The memory of `tensor` is used here: if it is freed, nobody gets it before this is done."""


class NoSide:
    """Where copies are in line with what is computed: on a CPU."""

    def after_compute(self) -> None: ...

    def copying(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self) -> None: ...

    def before_compute(self, mark: Any) -> None: ...

    def reads(self, tensor: Tensor) -> None: ...


class CudaSide:
    def __init__(self, device: torch.device):
        self._device, self._stream = device, torch.cuda.Stream(device)

    def after_compute(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def copying(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def mark(self) -> Any:
        return self._stream.record_event()

    def before_compute(self, mark: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)

    def reads(self, tensor: Tensor) -> None:
        tensor.record_stream(self._stream)


def side_of(device: torch.device) -> Side:
    return CudaSide(device) if device.type == "cuda" else NoSide()


class _Coming(NamedTuple):
    host: Tensor
    """Kept until the copy is done."""
    mark: Any


class HostOffload:
    """Moves storages between the device and (pinned) host memory."""

    def __init__(self, side: Side | None = None) -> None:
        self._side: Side = side or NoSide()
        self._parked: dict[int, Tensor] = {}
        self._coming: dict[int, _Coming] = {}

    def park(self, tensors: Iterable[Tensor], in_use: Iterable[Tensor] = ()) -> None:
        """Empty the storages of `tensors`, which must not be read or written until they are fetched; not those that
        `in_use` shares, nor those that are on their way back."""
        stay = {tensor.untyped_storage()._cdata for tensor in in_use} | self._coming.keys()
        leaving = {tensor.untyped_storage()._cdata: tensor for tensor in tensors}
        chosen = [t for key, t in leaving.items() if key not in stay and key not in self._parked and _size(t)]
        if not chosen:
            return
        self._side.after_compute()
        for tensor in chosen:
            storage, device_bytes = tensor.untyped_storage(), _bytes_of(tensor)
            host = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=tensor.is_cuda)
            with self._side.copying():
                host.copy_(device_bytes, non_blocking=True)
            self._side.reads(device_bytes)
            storage.resize_(0)
            self._parked[storage._cdata] = host

    def bring(self, tensors: Iterable[Tensor]) -> None:
        """Begin to fill the storages of those `tensors` that are parked; they are not to be read yet."""
        here = {tensor.untyped_storage()._cdata: tensor for tensor in tensors}
        parked = {key: tensor for key, tensor in here.items() if key in self._parked}
        for key, tensor in parked.items():
            tensor.untyped_storage().resize_(self._parked[key].numel())
        if not parked:
            return
        self._side.after_compute()  # which may still use what the memory was before
        with self._side.copying():
            for key, tensor in parked.items():
                _bytes_of(tensor).copy_(self._parked[key], non_blocking=True)
        mark = self._side.mark()
        for key in parked:
            self._coming[key] = _Coming(self._parked.pop(key), mark)

    def fetch(self, tensors: Iterable[Tensor]) -> None:
        """Fill the storages of those `tensors` that are parked, and have what is computed next wait for those on their
        way."""
        tensors = list(tensors)
        self.bring(tensors)
        for tensor in tensors:
            coming = self._coming.pop(tensor.untyped_storage()._cdata, None)
            if coming is not None:
                self._side.before_compute(coming.mark)

    def clear(self) -> None:
        self._parked.clear()
        self._coming.clear()

    @property
    def parked_bytes(self) -> int:
        return sum(host.numel() for host in self._parked.values())


def _size(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _bytes_of(tensor: Tensor) -> Tensor:
    """The whole storage of `tensor` as bytes."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)  # type: ignore[call-overload, no-any-return]
