"""AGG: softmax attention of one learned query over depth sources. One contract, several backends.

For every token, with sources v_1 .. v_n of width D:

    s_j = query . (gain * v_j / sqrt(mean(v_j^2) + eps))     the key is the normalised source
    h   = sum_j softmax(s)_j v_j                             the value is the source as it is

No 1/sqrt(D), no bias, one head (Attention Residuals, arXiv 2603.15031). Statistics, softmax and the weighted
sum run in fp32 (in float64 for float64 sources); the result is rounded once, to the sources' dtype.

Legend: D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnres_train.depth.backends import chosen_backend, kernel_for
from attnres_train.depth.config import Backend
from attnres_train.depth.mix import Norm, compute_dtype, mix
from attnres_train.depth.modes.mode import Look
from attnres_train.depth.source import Source


def aggregate(
    sources: Sequence[Tensor], query: Tensor, gain: Tensor, *, eps: float, backend: Backend = "auto"
) -> Tensor:
    """The depth-weighted mix of `sources`, each `[..., D]`, for one `query` and key `gain`, both `[D]`.

    `reference` is plain torch and keeps what autograd keeps; it alone can be differentiated twice. The others
    keep references to the sources and three scalars a token and source, and recompute the rest. `auto` picks
    by device and dtype (`attnres inspect` says which).

    Raises ValueError for sources, query or gain that do not fit together.
    """
    check_sources(sources, query, gain)
    return aggregate_sources([Source(source, None) for source in sources], query, gain, eps=eps, backend=backend)


def aggregate_sources(
    sources: Sequence[Source],
    query: Tensor,
    gain: Tensor,
    *,
    eps: float,
    norm: Norm | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """`aggregate` whose source gradients are deposited, optionally followed by RMSNorm in the same pass.

    With `norm` the mix itself is neither rounded nor kept: backward makes it again from the sources.
    """
    name = chosen_backend(backend, sources[0].value)
    if name == "reference":
        return _reference([source.tap() for source in sources], query, gain, eps, norm)
    return mix(kernel_for(name), sources, query, gain, eps, norm)


def mix_with_weights(sources: Sequence[Tensor], query: Tensor, gain: Tensor, *, eps: float) -> Look:
    """What `aggregate` makes of `sources`, with the weights of every token; outside the graph, on any device."""
    compute = compute_dtype(sources[0].dtype)
    direction_D = query.detach().to(compute) * gain.detach().to(compute)
    rows = [source.detach().flatten(0, -2) for source in sources]
    mix_ND, (_, _, weights_SN) = kernel_for("lean").forward(rows, direction_D, eps, None)
    return Look(mix_ND, weights_SN, torch.special.entr(weights_SN).sum(0))


def normalise(source: Source, norm: Norm, *, backend: Backend = "auto") -> Tensor:
    """RMSNorm of one source, its gradient deposited."""
    name = chosen_backend(backend, source.value)
    if name == "reference":
        value = source.tap()
        return rms_norm(value.to(compute_dtype(value.dtype)), norm).to(value.dtype)
    return mix(kernel_for(name), [source], None, None, 0.0, norm)


def check_sources(sources: Sequence[Tensor], query: Tensor, gain: Tensor) -> None:
    """Raises ValueError, naming what does not fit with what."""
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


def _reference(sources: Sequence[Tensor], query: Tensor, gain: Tensor, eps: float, norm: Norm | None) -> Tensor:
    compute = compute_dtype(sources[0].dtype)
    values = [source.to(compute) for source in sources]
    direction_D = query.to(compute) * gain.to(compute)
    scores = [(value @ direction_D) / rms(value, eps) for value in values]
    weights = torch.stack(scores).softmax(0)
    mixed = weighted_sum(values, weights)
    if norm is not None:
        mixed = rms_norm(mixed, norm)
    return mixed.to(sources[0].dtype)


def weighted_sum(values: Sequence[Tensor], weights: Tensor) -> Tensor:
    """sum_j weights_j values_j, one source after the other; `weights` is `[S, ...]`, values `[..., D]`."""
    mixed = weights[0].unsqueeze(-1) * values[0]
    for weight, value in zip(weights[1:], values[1:], strict=True):
        mixed = mixed + weight.unsqueeze(-1) * value
    return mixed


def rms_norm(value: Tensor, norm: Norm) -> Tensor:
    """`value` over its rms, times the norm's gain, in the dtype of `value`."""
    return value / rms(value, norm.eps).unsqueeze(-1) * norm.gain.to(value.dtype)


def rms(value: Tensor, eps: float) -> Tensor:
    """sqrt(mean(value^2) + eps) over the last dimension.

    By hypot: the derivative of rsqrt holds rms^-3, which underflows in fp32.
    """
    width, root_eps = value.shape[-1], value.new_tensor(eps).sqrt()
    return torch.hypot(torch.linalg.vector_norm(value, dim=-1) / width**0.5, root_eps)


def also_minimise(mixed: Tensor, penalty: Tensor) -> Tensor:
    """`mixed`, such that a backward through it also runs one from the scalar `penalty` with gradient one.

    The training loss is a sum over tokens, divided by their global count after all backwards; `penalty` is a sum
    over tokens too, so it is weighed in the same way.
    """
    return _Penalised.apply(mixed, penalty)


class _Penalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, penalty: Tensor) -> Tensor:
        ctx.penalty_dtype = penalty.dtype
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,) = grad_outputs
        return gradient, gradient.new_ones((), dtype=ctx.penalty_dtype)
