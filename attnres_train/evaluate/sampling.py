"""From the logits of one position to the next token; pure. As transformers' processors of these names, in their order.

Legend: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_NEVER = float("-inf")


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. The defaults sample as the model says."""

    temperature: float = 1.0
    """Logits are divided by it; 0 takes the likeliest token."""
    top_k: int | None = None
    """Of the likeliest tokens, so many."""
    top_p: float | None = None
    """The likeliest tokens that together have this probability."""
    min_p: float | None = None
    """Tokens of at least this share of the likeliest one's probability."""
    repetition_penalty: float = 1.0
    """Logits of tokens that are there already are divided by it, or multiplied where they are below zero."""


def next_token(logits_V: Tensor, before: Sequence[int], sampling: Sampling, generator: torch.Generator) -> int:
    """The token after `before`; `generator` is on the CPU."""
    logits_V = penalised(logits_V.detach().float().cpu(), before, sampling.repetition_penalty)
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    kept_V = left(logits_V / sampling.temperature, sampling)
    return int(torch.multinomial(kept_V.softmax(-1), 1, generator=generator))


def penalised(logits_V: Tensor, before: Sequence[int], penalty: float) -> Tensor:
    """Logits with those of tokens `before` made smaller."""
    if penalty == 1 or not before:
        return logits_V
    index = torch.tensor(sorted(set(before)))
    there = logits_V[index]
    return logits_V.index_copy(0, index, torch.where(there < 0, there * penalty, there / penalty))


def left(logits_V: Tensor, sampling: Sampling) -> Tensor:
    """Logits with what top_k, top_p and min_p leave out at minus infinity; the likeliest always stays."""
    if sampling.top_k is not None and sampling.top_k < len(logits_V):
        least = logits_V.topk(sampling.top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < least, _NEVER)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered_V, order_V = logits_V.sort(descending=False)
        out_V = ordered_V.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        out_V[-1] = False
        logits_V = logits_V.masked_fill(torch.zeros_like(out_V).scatter(0, order_V, out_V), _NEVER)
    if sampling.min_p is not None:
        shares_V = logits_V.softmax(-1)
        logits_V = logits_V.masked_fill(shares_V < sampling.min_p * shares_V.max(), _NEVER)
    return logits_V
