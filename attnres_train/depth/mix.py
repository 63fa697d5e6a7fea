"""The mix over depth as one node of the graph: any kernel, gradients deposited where the sources want them.

Legend: S sources, N tokens (all leading dimensions flattened), D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnres_train.depth.source import GradientBuffer, Source, Target

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Of weights and activations, by `training.precision`."""


class Norm(NamedTuple):
    """An RMSNorm of the mix: x / sqrt(mean(x^2) + eps) * gain (arXiv 1910.07467)."""

    gain: Tensor
    eps: float


class MixKernel(Protocol):
    """The arithmetic of one backend, free of autograd. Vectors come in the compute dtype (`compute_dtype`).

    `direction_D` is query * gain; None, with one source, leaves the norm alone.
    """

    def forward(
        self, values_ND: Sequence[Tensor], direction_D: Tensor | None, eps: float, norm: Norm | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The mix, normalised if `norm` is given, `[N, D]` in the sources' dtype, and what backward needs."""
        ...

    def backward(
        self,
        grad_ND: Tensor,
        values_ND: Sequence[Tensor],
        kept: tuple[Tensor, ...],
        direction_D: Tensor | None,
        norm: Norm | None,
        targets: Sequence[Target | None],
    ) -> tuple[Tensor | None, Tensor | None]:
        """Add each source's gradient to its target; return those of `direction_D` and of the norm's gain."""
        ...


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Statistics, softmax and sums of sources of `dtype` run in this: at least fp32."""
    return torch.promote_types(dtype, torch.float32)


def mix(
    kernel: MixKernel,
    sources: Sequence[Source],
    query: Tensor | None,
    gain: Tensor | None,
    eps: float,
    norm: Norm | None,
) -> Tensor:
    """The mix of `sources` for one query by `kernel`; see `aggregation.aggregate` for the formula.

    Without a query there is one source, which is normalised.
    """
    call = _Call(kernel, eps, None if norm is None else norm.eps, tuple(source.gradient for source in sources))
    return _Mix.apply(call, query, gain, None if norm is None else norm.gain, *(source.value for source in sources))


@dataclass(frozen=True)
class _Call:
    kernel: MixKernel
    eps: float
    norm_eps: float | None
    buffers: tuple[GradientBuffer | None, ...]


class _Mix(torch.autograd.Function):
    """Keeps the sources by reference and what the kernel keeps a token and source; recomputes the rest."""

    @staticmethod
    def forward(
        ctx: Any, call: _Call, query: Tensor | None, gain: Tensor | None, norm_gain: Tensor | None, *values: Tensor
    ) -> Tensor:
        direction_D, norm = _vectors(call, query, gain, norm_gain, values[0].dtype)
        mixed_ND, kept = call.kernel.forward([_rows(value) for value in values], direction_D, call.eps, norm)
        ctx.save_for_backward(query, gain, norm_gain, *kept, *values)
        ctx.call, ctx.num_kept = call, len(kept)
        return mixed_ND.view(values[0].shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        query, gain, norm_gain, *rest = ctx.saved_tensors
        kept, values = tuple(rest[: ctx.num_kept]), rest[ctx.num_kept :]
        direction_D, norm = _vectors(call, query, gain, norm_gain, values[0].dtype)
        targets = [
            _target(buffer, value) if wanted else None
            for buffer, value, wanted in zip(call.buffers, values, ctx.needs_input_grad[4:], strict=True)
        ]
        grad_direction_D, grad_norm_D = call.kernel.backward(
            _rows(grad_outputs[0]),
            [_rows(value) for value in values],
            kept,
            direction_D,
            norm,
            [target and _target_rows(target) for target in targets],
        )
        returned = [
            target.out if target is not None and buffer is None else None
            for target, buffer in zip(targets, call.buffers, strict=True)
        ]
        grad_norm = None if norm_gain is None or grad_norm_D is None else grad_norm_D.to(norm_gain.dtype)
        if grad_direction_D is None:
            return None, None, None, grad_norm, *returned
        grad_query = (grad_direction_D * gain).to(query.dtype)
        grad_gain = (grad_direction_D * query).to(gain.dtype)
        return None, grad_query, grad_gain, grad_norm, *returned


def _vectors(
    call: _Call, query: Tensor | None, gain: Tensor | None, norm_gain: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor | None, Norm | None]:
    """query * gain, and the norm, in the compute dtype."""
    compute = compute_dtype(dtype)
    direction_D = None
    if query is not None and gain is not None:
        direction_D = query.detach().to(compute) * gain.detach().to(compute)
    if norm_gain is None or call.norm_eps is None:
        return direction_D, None
    return direction_D, Norm(norm_gain.detach().to(compute), call.norm_eps)


def _rows(tensor: Tensor) -> Tensor:
    """`[..., D]` as `[N, D]`, contiguous: a view where it can be."""
    return tensor.detach().reshape(-1, tensor.shape[-1]).contiguous()


def _target_rows(target: Target) -> Target:
    return Target(None if target.base is None else _rows(target.base), _rows(target.out))


def _target(buffer: GradientBuffer | None, value: Tensor) -> Target:
    return (
        Target(None, torch.empty(value.shape, dtype=value.dtype, device=value.device))
        if buffer is None
        else (buffer.target(value))
    )
