"""The most that tensors take at once while something runs, counted by storage: a process's memory is too coarse."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Peak(TorchDispatchMode):
    """Remembers, weakly, every storage that an operation returns, and the largest sum of those alive.

    What no operation returns is not seen: storages from before (`already`), and memory of the libraries below torch.
    Storages are looked over only where their sum could be a new peak.
    """

    def __init__(self, already: Iterable[Tensor]) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in already}
        self._standing = dict(self._known)
        self._new: dict[int, tuple[StorageWeakRef, int]] = {}
        self._sum = 0
        self.peak_bytes = self.base_bytes = sum(self._known.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        return result

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        if place == 0 or place in self._standing or size == 0:
            return
        known = self._new.get(place)
        if known is not None and not known[0].expired():
            return
        if known is not None:
            self._sum -= known[1]
        self._new[place] = (StorageWeakRef(storage), size)
        self._sum += size
        if self.base_bytes + self._sum > self.peak_bytes:
            self._new = {place: entry for place, entry in self._new.items() if not entry[0].expired()}
            self._sum = sum(size for _, size in self._new.values())
            self.peak_bytes = max(self.peak_bytes, self.base_bytes + self._sum)


def peak_bytes(action: Callable[[], object], already: Iterable[Tensor]) -> int:
    """The largest sum, in bytes, of the storages of `already` and of all that `action` makes, at any moment of it."""
    with _Peak(already) as peak:
        action()
    return peak.peak_bytes
