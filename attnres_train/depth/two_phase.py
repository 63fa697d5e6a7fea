"""The two-phase form of attention over depth: exact, one pass over the finished blocks for all queries of a block.

    phase 1   every query l of the block, over the finished sources alone:
              m_l = max_j s_lj ;  z_l = sum_j exp(s_lj - m_l) ;  o_l = sum_j exp(s_lj - m_l) v_j
    phase 2   query l, when the partial p is there, with its score s:  m = max(m_l, s) ;
              h = (exp(m_l - m) o_l + exp(s - m) p) / (exp(m_l - m) z_l + exp(s - m))

It saves reads of the sources and costs a tensor o_l a query, in the compute dtype, written and read once. In units
of one slice, for n finished sources and B queries of fp32: B (n + 1) reads against n + B writes + B reads. Whether
that pays depends on the memory behind it: `python -m tests.bench.aggregate` measures both (see README.md, where
the figures are). Plain torch; autograd differentiates it.

Legend: S sources, N tokens, D width, L queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnres_train.depth.aggregation import rms
from attnres_train.depth.mix import compute_dtype


class Unfinished(NamedTuple):
    """One query's attention over the finished sources, before the partial is known; compute dtype."""

    largest_N: Tensor
    total_N: Tensor
    mixed_ND: Tensor
    """Weighted by exp(score - largest), not divided by the total."""


def attend_finished(
    sources: Sequence[Tensor], queries: Sequence[Tensor], gains: Sequence[Tensor], *, eps: float
) -> list[Unfinished]:
    """Phase 1: every query over the finished `sources`, each `[..., D]`, read once for all queries.

    An online softmax: sources are taken one at a time, and sums rescaled where the largest score grows.
    """
    compute = compute_dtype(sources[0].dtype)
    directions_DL = torch.stack([q.to(compute) * g.to(compute) for q, g in zip(queries, gains, strict=True)], dim=1)
    states: list[Unfinished] = []
    for index, source in enumerate(sources):
        value = source.to(compute)
        scores_NL = (value @ directions_DL) / rms(value, eps).unsqueeze(-1)
        columns = scores_NL.unbind(-1)
        if index == 0:
            states = [Unfinished(score, torch.ones_like(score), value) for score in columns]
        else:
            states = [_include(state, score, value) for state, score in zip(states, columns, strict=True)]
    return states


def merge_partial(
    state: Unfinished, partial: Tensor | None, query: Tensor, gain: Tensor, *, eps: float, dtype: torch.dtype
) -> Tensor:
    """Phase 2: the mix for one query, `[..., D]`, rounded once to `dtype`; `partial` is None at a block's start."""
    if partial is not None:
        value = partial.to(state.mixed_ND.dtype)
        direction_D = query.to(value.dtype) * gain.to(value.dtype)
        state = _include(state, (value @ direction_D) / rms(value, eps), value)
    return (state.mixed_ND / state.total_N.unsqueeze(-1)).to(dtype)


def _include(state: Unfinished, score_N: Tensor, value_ND: Tensor) -> Unfinished:
    largest_N = torch.maximum(state.largest_N, score_N)
    before_N, now_N = (state.largest_N - largest_N).exp(), (score_N - largest_N).exp()
    mixed_ND = before_N.unsqueeze(-1) * state.mixed_ND + now_N.unsqueeze(-1) * value_ND
    return Unfinished(largest_N, before_N * state.total_N + now_N, mixed_ND)
