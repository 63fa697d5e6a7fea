"""AGG: softmax attention of one learned query over depth sources. One contract, several backends.

For every token, with sources v_1 .. v_n of width D:

    s_j = query . (gain * v_j / sqrt(mean(v_j^2) + eps))     the key is the normalised source
    h   = sum_j softmax(s)_j v_j                             the value is the source as it is

No 1/sqrt(D), no bias, one head (Attention Residuals, arXiv 2603.15031). Statistics, softmax and the weighted
sum run in fp32 (in float64 for float64 sources); the result is rounded once, to the sources' dtype.

Legend: S sources, N tokens (all leading dimensions flattened), D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Backend = Literal["auto", "reference", "lean"]


def aggregate(
    sources: Sequence[Tensor], query: Tensor, gain: Tensor, *, eps: float, backend: Backend = "auto"
) -> Tensor:
    """The depth-weighted mix of `sources`, each `[..., D]`, for one `query` and key `gain`, both `[D]`.

    `reference` is plain torch and keeps what autograd keeps. `lean` keeps references to the sources and three
    scalars a token and source, and recomputes the rest. `auto` is `lean`.

    Raises ValueError for sources, query or gain that do not fit together.
    """
    _check(sources, query, gain)
    if backend == "reference":
        return _reference(sources, query, gain, eps)
    if backend in ("auto", "lean"):
        return _LeanAggregate.apply(query, gain, eps, *sources)
    raise ValueError(f"unknown aggregation backend {backend!r}; known: auto, reference, lean")


def _check(sources: Sequence[Tensor], query: Tensor, gain: Tensor) -> None:
    if not sources:
        raise ValueError("aggregate needs at least one source")
    first = sources[0]
    for index, source in enumerate(sources):
        if source.shape != first.shape or source.dtype != first.dtype or source.device != first.device:
            raise ValueError(
                f"source {index} is {tuple(source.shape)} {source.dtype} on {source.device}, "
                f"source 0 is {tuple(first.shape)} {first.dtype} on {first.device}"
            )
    for name, vector in (("query", query), ("gain", gain)):
        if vector.shape != first.shape[-1:] or vector.device != first.device:
            raise ValueError(
                f"{name} is {tuple(vector.shape)} on {vector.device}; "
                f"sources of width {first.shape[-1]} on {first.device} need ({first.shape[-1]},)"
            )


def _compute_dtype(source: Tensor) -> torch.dtype:
    return torch.promote_types(source.dtype, torch.float32)


def _reference(sources: Sequence[Tensor], query: Tensor, gain: Tensor, eps: float) -> Tensor:
    compute = _compute_dtype(sources[0])
    values = [source.to(compute) for source in sources]
    direction_D = query.to(compute) * gain.to(compute)
    # Root of the mean square plus eps, by hypot: the derivative of rsqrt holds rms^-3, which underflows in fp32.
    root_width, root_eps = direction_D.numel() ** 0.5, direction_D.new_tensor(eps).sqrt()
    rms = [torch.hypot(torch.linalg.vector_norm(value, dim=-1) / root_width, root_eps) for value in values]
    scores = [(value @ direction_D) / value_rms for value, value_rms in zip(values, rms, strict=True)]
    weights = torch.stack(scores).softmax(0)
    mixed = weights[0].unsqueeze(-1) * values[0]
    for weight, value in zip(weights[1:], values[1:], strict=True):
        mixed = mixed + weight.unsqueeze(-1) * value
    return mixed.to(sources[0].dtype)


class _LeanAggregate(torch.autograd.Function):
    """Keeps the sources by reference and (1/rms, direction . source, weight) a token and source.

    With q = query * gain, r = 1/rms, p = q . v, a = softmax(p r), and g the gradient of h:

        u_j = g . v_j ;  delta_j = a_j (u_j - sum_k a_k u_k)
        dL/dv_j = a_j g + delta_j r_j q - (delta_j p_j r_j^3 / D) v_j
        dL/dq = sum over tokens and sources of delta_j r_j v_j ;  dL/dquery = dL/dq gain ;  dL/dgain = dL/dq query
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, gain: Tensor, eps: float, *sources: Tensor) -> Tensor:
        width = sources[0].shape[-1]
        compute = _compute_dtype(sources[0])
        direction_D = query.to(compute) * gain.to(compute)
        rows = sources[0].numel() // width
        projection_SN = torch.empty(len(sources), rows, dtype=compute, device=query.device)
        inverse_rms_SN = torch.empty_like(projection_SN)
        for index, source in enumerate(sources):
            value_ND = source.reshape(rows, width).to(compute)
            torch.mv(value_ND, direction_D, out=projection_SN[index])
            mean_square_N = torch.linalg.vecdot(value_ND, value_ND) / width
            torch.rsqrt(mean_square_N + eps, out=inverse_rms_SN[index])
        weights_SN = torch.softmax(projection_SN * inverse_rms_SN, dim=0)
        mixed_ND = torch.zeros(rows, width, dtype=compute, device=query.device)
        for source, weight_N in zip(sources, weights_SN, strict=True):
            mixed_ND.addcmul_(source.reshape(rows, width).to(compute), weight_N.unsqueeze(-1))
        ctx.save_for_backward(query, gain, projection_SN, inverse_rms_SN, weights_SN, *sources)
        return mixed_ND.to(sources[0].dtype).view(sources[0].shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        query, gain, projection_SN, inverse_rms_SN, weights_SN, *sources = ctx.saved_tensors
        width = sources[0].shape[-1]
        rows = projection_SN.shape[1]
        compute = projection_SN.dtype
        grad_ND = grad_outputs[0].reshape(rows, width).to(compute)
        values = [source.reshape(rows, width).to(compute) for source in sources]
        alignment_SN = torch.stack([torch.linalg.vecdot(grad_ND, value_ND) for value_ND in values])
        delta_SN = weights_SN * (alignment_SN - (weights_SN * alignment_SN).sum(0))
        scaled_delta_SN = delta_SN * inverse_rms_SN
        shrink_SN = scaled_delta_SN * projection_SN * inverse_rms_SN.square() / width
        direction_D = query.to(compute) * gain.to(compute)
        grad_direction_D = torch.zeros_like(direction_D)
        grad_sources = []
        for index, value_ND in enumerate(values):
            grad_direction_D += torch.mv(value_ND.T, scaled_delta_SN[index])
            grad_value_ND = grad_ND * weights_SN[index].unsqueeze(-1)
            grad_value_ND.addr_(scaled_delta_SN[index], direction_D)
            grad_value_ND.addcmul_(value_ND, shrink_SN[index].unsqueeze(-1), value=-1)
            grad_sources.append(grad_value_ND.to(sources[0].dtype).view(sources[0].shape))
        grad_query = (grad_direction_D * gain).to(query.dtype)
        grad_gain = (grad_direction_D * query).to(gain.dtype)
        return grad_query, grad_gain, None, *grad_sources
