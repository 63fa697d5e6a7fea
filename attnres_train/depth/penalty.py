"""A term of the objective that arises in the middle of the network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Penalised(torch.autograd.Function):
    """Identity of the first argument; backward gives the second, a scalar, the gradient one."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, penalty: Tensor) -> Tensor:
        ctx.penalty_dtype = penalty.dtype
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,) = grad_outputs
        return gradient, gradient.new_ones((), dtype=ctx.penalty_dtype)
