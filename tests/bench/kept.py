"""What autograd keeps of a forward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def kept_bytes(forward: Callable[[], object], module: nn.Module) -> int:
    """Bytes of the tensors that `forward` saves for backward, each storage once, those of `module` left out."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in own:
            kept[address] = tensor  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = forward()
    total = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del result
    return total
