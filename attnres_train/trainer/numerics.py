"""How a GPU computes: fp32 in full or rounded to TF32, the same bits every time or the fastest kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from attnres_train.trainer.config import TrainingConfig

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def settle_numerics(training: TrainingConfig, device_type: str) -> None:
    """Before anything is computed on the device: cuBLAS reads its variable when it starts.

    A CPU is left as it is: it has no TF32 here, and gives the same bits whenever threads are as many.
    """
    if device_type != "cuda":
        return
    torch.backends.cuda.matmul.allow_tf32 = training.tf32
    torch.backends.cudnn.allow_tf32 = training.tf32
    if training.deterministic:
        os.environ.setdefault(CUBLAS, ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # buffers are written first
        # What is left: torch's flash attention, whose backward then sums in one order, and plain matrix products.
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)


def numerics_in_words(training: TrainingConfig, device_type: str) -> Iterator[str]:
    """What holds, for the log of a run."""
    if device_type != "cuda":
        return
    if training.precision == "fp32":
        yield (
            "fp32 products are rounded to TF32, ten bits (training.tf32)" if training.tf32
            else "fp32 products are in full, several times slower than TF32 (training.tf32 = true)"
        )  # fmt: skip
    yield (
        "a run repeats to the bit on the same GPUs, libraries and layout (training.deterministic)"
        if training.deterministic
        else "attention's backward adds up in no fixed order: runs differ in rounding (training.deterministic = true)"
    )
