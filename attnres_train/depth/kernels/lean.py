"""The mix in plain torch operations, on any device: a few scalars a token and source, the rest made again.

With q = query * gain, r = 1/rms, p = q . v, a = softmax(p r), and g the gradient of h = sum_j a_j v_j:

    u_j = g . v_j ;  delta_j = a_j (u_j - sum_k a_k u_k)
    dL/dv_j = a_j g + delta_j r_j q - (delta_j p_j r_j^3 / D) v_j ;  dL/dq = sum over tokens, j of delta_j r_j v_j

and through the norm y = R h w, R = 1/rms(h), with G = dL/dy (h is made again from the sources):

    g = R w G - h R^3 / D (w G . h) ;  dL/dw = sum over tokens of G h R

Legend: S sources, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnres_train.depth.mix import Norm
from attnres_train.depth.source import Target


class LeanKernel:
    """One source at a time; no copy of a source outlives its turn."""

    def forward(
        self, values_ND: Sequence[Tensor], direction_D: Tensor | None, eps: float, norm: Norm | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        if direction_D is None:
            return _norm_forward(values_ND[0], norm)
        rows = values_ND[0].shape[0]
        projection_SN = direction_D.new_empty(len(values_ND), rows)
        inverse_rms_SN = torch.empty_like(projection_SN)
        for index, stored_ND in enumerate(values_ND):
            value_ND = stored_ND.to(direction_D.dtype)
            torch.mv(value_ND, direction_D, out=projection_SN[index])
            inverse_rms_SN[index] = _inverse_rms(value_ND, eps)
        weights_SN = torch.softmax(projection_SN * inverse_rms_SN, dim=0)
        mixed_ND = _weighted_sum(values_ND, weights_SN)
        kept: tuple[Tensor, ...] = (projection_SN, inverse_rms_SN, weights_SN)
        if norm is not None:
            norm_N = _inverse_rms(mixed_ND, norm.eps)
            mixed_ND.mul_(norm_N.unsqueeze(-1)).mul_(norm.gain)
            kept = (*kept, norm_N)
        return mixed_ND.to(values_ND[0].dtype), kept

    def backward(
        self,
        grad_ND: Tensor,
        values_ND: Sequence[Tensor],
        kept: tuple[Tensor, ...],
        direction_D: Tensor | None,
        norm: Norm | None,
        targets: Sequence[Target | None],
    ) -> tuple[Tensor | None, Tensor | None]:
        if direction_D is None:
            return None, _norm_backward(grad_ND, values_ND[0], kept[0], norm, targets[0])
        projection_SN, inverse_rms_SN, weights_SN = kept[:3]
        width = direction_D.numel()
        compute = direction_D.dtype
        grad_ND, grad_norm_D = grad_ND.to(compute), None
        if norm is not None:
            grad_ND, grad_norm_D = _through_norm(grad_ND, _weighted_sum(values_ND, weights_SN), kept[3], norm.gain)
        alignment_SN = torch.stack([torch.linalg.vecdot(grad_ND, value_ND.to(compute)) for value_ND in values_ND])
        delta_SN = weights_SN * (alignment_SN - (weights_SN * alignment_SN).sum(0))
        scaled_SN = delta_SN * inverse_rms_SN
        # In this order nothing overflows for tiny sources.
        shrink_SN = scaled_SN * (projection_SN * inverse_rms_SN) * (inverse_rms_SN / width)
        grad_direction_D = torch.zeros_like(direction_D)
        for index, (stored_ND, target) in enumerate(zip(values_ND, targets, strict=True)):
            value_ND = stored_ND.to(compute)
            grad_direction_D += torch.mv(value_ND.T, scaled_SN[index])
            if target is None:
                continue
            part_ND = grad_ND * weights_SN[index].unsqueeze(-1)
            part_ND.addr_(scaled_SN[index], direction_D)
            part_ND.addcmul_(value_ND, shrink_SN[index].unsqueeze(-1), value=-1)
            _write(target, part_ND)
        return grad_direction_D, grad_norm_D


def _norm_forward(value_ND: Tensor, norm: Norm | None) -> tuple[Tensor, tuple[Tensor, ...]]:
    assert norm is not None, "neither a query nor a norm: nothing to compute"
    wide_ND = value_ND.to(norm.gain.dtype)
    norm_N = _inverse_rms(wide_ND, norm.eps)
    return (wide_ND * norm_N.unsqueeze(-1)).mul_(norm.gain).to(value_ND.dtype), (norm_N,)


def _norm_backward(
    grad_ND: Tensor, value_ND: Tensor, norm_N: Tensor, norm: Norm | None, target: Target | None
) -> Tensor:
    assert norm is not None
    compute = norm.gain.dtype
    part_ND, grad_gain_D = _through_norm(grad_ND.to(compute), value_ND.to(compute, copy=True), norm_N, norm.gain)
    if target is not None:
        _write(target, part_ND)
    return grad_gain_D


def _write(target: Target, part_ND: Tensor) -> None:
    target.out.copy_(part_ND if target.base is None else part_ND.add_(target.base))


def _inverse_rms(value_ND: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(torch.linalg.vecdot(value_ND, value_ND) / value_ND.shape[-1] + eps)


def _weighted_sum(values_ND: Sequence[Tensor], weights_SN: Tensor) -> Tensor:
    mixed_ND = weights_SN.new_zeros(values_ND[0].shape)
    for stored_ND, weight_N in zip(values_ND, weights_SN, strict=True):
        mixed_ND.addcmul_(stored_ND.to(weights_SN.dtype), weight_N.unsqueeze(-1))
    return mixed_ND


def _through_norm(upstream_ND: Tensor, mixed_ND: Tensor, norm_N: Tensor, gain_D: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the mix and of the norm's gain."""
    normed_ND = mixed_ND.mul_(norm_N.unsqueeze(-1))
    grad_gain_D = (upstream_ND * normed_ND).sum(0)
    scaled_ND = upstream_ND * gain_D
    along_N = torch.linalg.vecdot(scaled_ND, normed_ND) / gain_D.numel()
    return (scaled_ND - normed_ND * along_N.unsqueeze(-1)).mul_(norm_N.unsqueeze(-1)), grad_gain_D
