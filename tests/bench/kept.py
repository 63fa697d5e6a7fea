"""What stands in memory after a forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Allocations(TorchDispatchMode):
    """Remembers, weakly, the storage of every tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in before:
                storage = leaf.untyped_storage()
                self.storages[storage.data_ptr()] = (StorageWeakRef(storage), storage.nbytes())
        return result

    def live_bytes(self) -> int:
        return sum(size for storage, size in self.storages.values() if not storage.expired())


def live_bytes(forward: Callable[[], object]) -> int:
    """Bytes that `forward` allocated and that are still held after it, by its result and for its backward."""
    with _Allocations() as allocations:
        result = forward()
        live = allocations.live_bytes()
    del result
    return live
