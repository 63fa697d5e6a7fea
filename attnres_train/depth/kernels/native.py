"""The mix on the CPU by compiled code (mix.cpp): memory is read once a pass.

Measured against torch.compile of the list form and against plain torch by `python -m tests.bench.aggregate`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from attnres_train.depth.mix import Norm, compute_dtype
from attnres_train.depth.source import Target

DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}

_INT, _POINTER, _REAL = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double
_FORWARD = [_INT] * 3 + [_POINTER] * 2 + [_REAL, _POINTER, _REAL] + [_POINTER] * 2 + [ctypes.c_int]
_BACKWARD = [_INT] * 3 + [_POINTER] * 9 + [ctypes.c_int]


class NativeKernel:
    """Calls into a compiled mix.cpp. Sums over tokens do not depend on the number of threads."""

    def __init__(self, library: ctypes.CDLL):
        library.depth_mix_rows_a_block.restype = _INT
        self._rows_a_block: int = library.depth_mix_rows_a_block()
        self._forward, self._backward = {}, {}
        for dtype, name in DTYPES.items():
            self._forward[dtype] = _typed(library[f"depth_mix_forward_{name}"], _FORWARD)
            self._backward[dtype] = _typed(library[f"depth_mix_backward_{name}"], _BACKWARD)

    def forward(
        self, values_ND: Sequence[Tensor], direction_D: Tensor | None, eps: float, norm: Norm | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        rows, width = values_ND[0].shape
        mixed_ND = torch.empty_like(values_ND[0])
        kept = torch.empty(rows, 3 * len(values_ND) + 1, dtype=compute_dtype(mixed_ND.dtype))
        self._forward[mixed_ND.dtype](
            len(values_ND),
            rows,
            width,
            _addresses(values_ND),
            _address(direction_D),
            eps,
            _address(norm and norm.gain),
            0.0 if norm is None else norm.eps,
            kept.data_ptr(),
            mixed_ND.data_ptr(),
            torch.get_num_threads(),
        )
        return mixed_ND, (kept,)

    def backward(
        self,
        grad_ND: Tensor,
        values_ND: Sequence[Tensor],
        kept: tuple[Tensor, ...],
        direction_D: Tensor | None,
        norm: Norm | None,
        targets: Sequence[Target | None],
    ) -> tuple[Tensor | None, Tensor | None]:
        rows, width = values_ND[0].shape
        blocks = -(-rows // self._rows_a_block)
        grad_direction = None if direction_D is None else direction_D.new_zeros(blocks, width)
        grad_norm = None if norm is None else norm.gain.new_zeros(blocks, width)
        self._backward[values_ND[0].dtype](
            len(values_ND),
            rows,
            width,
            _addresses(values_ND),
            _addresses([target and target.base for target in targets]),
            _addresses([target and target.out for target in targets]),
            grad_ND.data_ptr(),
            _address(direction_D),
            _address(norm and norm.gain),
            kept[0].data_ptr(),
            _address(grad_direction),
            _address(grad_norm),
            torch.get_num_threads(),
        )
        return _total(grad_direction), _total(grad_norm)


def _typed(function: ctypes._NamedFuncPointer, argument_types: Sequence[type]) -> ctypes._NamedFuncPointer:
    function.argtypes, function.restype = argument_types, None
    return function


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _addresses(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*map(_address, tensors))


def _total(blocks: Tensor | None) -> Tensor | None:
    return None if blocks is None else blocks.sum(0)
