"""What backward makes again instead of keeping it.

The history is a value and its buffers of gradients belong to the first forward: running a layer once more
makes the tensors that backward asks for, and nothing else of it is used. Nothing is appended twice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

Recompute = Literal["none", "depth", "layer", "block"]


class _Remade(NamedTuple):
    """A view of a tensor that is gone."""

    make: Callable[[], Tensor]
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


def made_again(tensor: Tensor, make: Callable[[], Tensor]) -> AbstractContextManager[Any]:
    """Inside, whatever saves `tensor` or a view of it for backward saves the recipe `make` instead.

    `make` must give the same bits.
    """
    # The hooks live as long as what they packed: they must not hold the tensor itself.
    address, dtype = tensor.untyped_storage().data_ptr(), tensor.dtype

    def pack(saved: Tensor) -> Tensor | _Remade:
        if saved.dtype != dtype or saved.untyped_storage().data_ptr() != address:
            return saved
        return _Remade(make, saved.size(), saved.stride(), int(saved.storage_offset()))

    def unpack(kept: Tensor | _Remade) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        with torch.no_grad():
            return kept.make().as_strided(kept.size, kept.stride, kept.offset)

    return saved_tensors_hooks(pack, unpack)


def run_again(run: Callable[..., Any], *arguments: Any) -> Any:
    """`run(*arguments)`, keeping its arguments alone; backward runs it once more. There is no dropout to replay."""
    return checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=False)
