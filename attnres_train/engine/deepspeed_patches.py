"""What is changed inside DeepSpeed 0.19.8, each with its reason; `tests/unit/test_deepspeed_seams.py` fails when a
later version moves what is changed here.

1. `comm.torch.build_shm_op`: on the CPU the first communication compiles `deepspeed_shm_comm` with the machine's
   compiler (over a minute, and a failure without one), an all-reduce by shared memory for inference. gloo does ours.
2. `zero.stage3.defragment`: ZeRO-3 moves all weights into one buffer of one dtype. With precision bf16 the
   parameters of depth readers are fp32: here each dtype has a buffer, and the pair of them is taken for one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from importlib import import_module
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

VERSION = "0.19.8"


def import_deepspeed() -> Any:
    """The patched package: quiet but for warnings, and those on the first rank alone. Safe to call again."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    first = not dist.is_initialized() or dist.get_rank() == 0
    os.environ.setdefault("LOCAL_RANK", "0")
    log = logging.getLogger("DeepSpeed")
    log.setLevel(logging.WARNING if first else logging.ERROR)
    import deepspeed
    from deepspeed.runtime.zero import stage3

    log.setLevel(logging.WARNING if first else logging.ERROR)  # importing it sets a level of its own
    log.addFilter(_not_about_histories)
    # By its full name: `deepspeed.comm` has an attribute `torch` too, which is torch itself.
    setattr(import_module("deepspeed.comm.torch"), "build_shm_op", _no_shm_op)  # noqa: B010
    if stage3.defragment is not _by_dtype:
        global _defragment
        _defragment, stage3.defragment = stage3.defragment, _by_dtype
    return deepspeed


def _no_shm_op() -> None:
    """DeepSpeed takes None for a machine without the operator."""


def _not_about_histories(record: logging.LogRecord) -> bool:
    """ZeRO-3 warns that it sees no tensors in a History. Weights are gathered by the modules that hold them, whose
    inputs and outputs are tensors."""
    return "module has unknown inputs or outputs type" not in record.getMessage()


_defragment: Any = None


class Buffers:
    """Several flat tensors, one behind the other, as far as DeepSpeed asks: ranges that lie inside one of them."""

    def __init__(self, parts: Sequence[Tensor]):
        self.parts = parts

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        for part in self.parts:
            if start < part.numel():
                return part.narrow(dim, start, length)
            start -= part.numel()
        raise IndexError(f"{length} elements behind the end")


def _by_dtype(tensors: list[Tensor]) -> Tensor | Buffers:
    """One buffer for each run of tensors of one dtype; parameter groups, which DeepSpeed then cuts out, have one."""
    parts = [_defragment(list(run)) for _, run in groupby(tensors, key=lambda tensor: tensor.dtype)]
    return parts[0] if len(parts) == 1 else Buffers(parts)
