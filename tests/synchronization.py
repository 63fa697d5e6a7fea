"""What would make the host wait for the device, found without one and with one.

On a GPU torch itself raises (`torch.cuda.set_sync_debug_mode`). On a CPU every operation goes by, and those that need
values of a tensor on the host are noted: a number read, a shape that depends on values, a mask as an index.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnres_train.parallel.pipeline import Pipeline

_NEEDS_VALUES = (
    "_local_scalar_dense", "nonzero", "nonzero_numpy", "argwhere", "is_nonzero", "masked_select", "_unique2",
    "unique_dim", "unique_consecutive", "equal", "allclose", "repeat_interleave", "bincount",
)  # fmt: skip


class noted(TorchDispatchMode):  # noqa: N801 - a context
    """Notes in `found` what would synchronize inside, on a CPU."""

    def __init__(self, found: list[str]):
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if name in _NEEDS_VALUES or _counts_a_mask(name, args):
            where = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_stack()[:-1]]
            self._found.append(f"{name} at {' < '.join(where[-1:-6:-1])}")
        return func(*args, **(kwargs or {}))


def _counts_a_mask(name: str, args: Any) -> bool:
    """Whether a mask is an index, of which the host must know how much it takes. One number for all of it is filled in
    without."""
    if name not in ("index", "index_put_", "index_put", "_index_put_impl_"):
        return False
    filled = name != "index" and args[2].numel() == 1
    masks = [index for index in args[1] if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)]
    return bool(masks) and not filled


@contextmanager
def _watching(device: torch.device, found: list[str]) -> Iterator[None]:
    if device.type != "cuda":
        with noted(found):
            yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")  # what synchronizes raises, where it does
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def synchronizations(pipeline: Pipeline) -> Iterator[list[str]]:
    """What synchronizes from the first forward of each run of `pipeline` inside to the end of its last backward."""
    found: list[str] = []
    forward_step, megatron = pipeline._forward_step, pipeline.communicator.config
    finalize: Any = megatron.finalize_model_grads_func
    watch: list[Any] = []

    def forward(*arguments: Any) -> Any:
        if not watch:
            watch.append(_watching(pipeline.grid.device, found))
            watch[0].__enter__()
        return forward_step(*arguments)

    def finished(*arguments: Any, **named: Any) -> Any:
        watch.pop().__exit__(None, None, None)
        return finalize(*arguments, **named)

    pipeline._forward_step = forward  # type: ignore[method-assign]
    megatron.finalize_model_grads_func = finished
    try:
        yield found
    finally:
        pipeline._forward_step = forward_step  # type: ignore[method-assign]
        megatron.finalize_model_grads_func = finalize
        if watch:  # a run ended by an error
            watch.pop().__exit__(None, None, None)
