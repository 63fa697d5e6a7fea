"""Which implementation of the mix runs: what can run here, and what `auto` picks."""

from __future__ import annotations

import functools
import importlib.util
from typing import Literal

import torch
from torch import Tensor

from attnres_train.depth.config import Backend
from attnres_train.depth.kernels.build import NativeUnavailable, load_library
from attnres_train.depth.kernels.lean import LeanKernel
from attnres_train.depth.kernels.native import DTYPES, NativeKernel
from attnres_train.depth.mix import MixKernel

TRITON_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

Chosen = Literal["reference", "lean", "native", "triton"]


def chosen_backend(backend: Backend, like: Tensor) -> Chosen:
    """The backend for sources like `like`. Raises ValueError for one that is unknown or cannot run here."""
    if backend == "auto":
        return automatic(like.device.type, like.dtype)[0]
    if backend not in ("reference", "lean", "native", "triton"):
        raise ValueError(f"unknown aggregation backend {backend!r}; known: auto, reference, lean, native, triton")
    if reason := why_not(backend, like.device.type, like.dtype):
        raise ValueError(f"aggregation backend {backend!r}: {reason}")
    return backend


def automatic(device_type: str, dtype: torch.dtype) -> tuple[Chosen, str | None]:
    """The fastest backend for this device and dtype, and why a faster one is not used, if so."""
    fastest: Chosen = "native" if device_type == "cpu" else "triton"
    reason = why_not(fastest, device_type, dtype)
    return (fastest, None) if reason is None else ("lean", f"{fastest}: {reason}")


@functools.cache
def why_not(backend: Chosen, device_type: str, dtype: torch.dtype) -> str | None:
    """Why `backend` cannot run on such sources here, None if it can. Compiles the native library if need be."""
    if backend == "native":
        if device_type != "cpu":
            return f"it runs on the CPU, the sources are on {device_type}"
        if dtype not in DTYPES:
            return f"it takes {', '.join(str(known) for known in DTYPES)}, the sources are {dtype}"
        return _native()[1]
    if backend == "triton":
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        if dtype not in TRITON_DTYPES:
            return f"it takes {', '.join(str(known) for known in TRITON_DTYPES)}, the sources are {dtype}"
        from attnres_train.depth.kernels.triton_mix import why_not_triton

        return why_not_triton(device_type)
    return None


def kernel_for(backend: Chosen) -> MixKernel:
    """The kernel of a backend that `chosen_backend` returned, `reference` excepted, which has none."""
    if backend == "native":
        kernel, reason = _native()
        if kernel is None:
            raise ValueError(f"aggregation backend 'native': {reason}")
        return kernel
    if backend == "triton":
        from attnres_train.depth.kernels.triton_mix import TritonKernel

        return TritonKernel()
    return LeanKernel()


@functools.cache
def _native() -> tuple[NativeKernel | None, str | None]:
    """Loaded once a process; with the reason where it cannot be."""
    try:
        return NativeKernel(load_library()), None
    except NativeUnavailable as unavailable:
        return None, str(unavailable)
