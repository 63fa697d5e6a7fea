"""The attention kernel where TransformerEngine is absent: torch's own, causal, over whole windows or inside documents.

Legend: T tokens, B batch, P = B T packed tokens, H query heads, G key/value heads (H a multiple of G), K head width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn

from attnres_train.model.documents import Documents

_WIDEST_HEAD = 256
"""Of torch's kernel for documents of many lengths, which also wants a multiple of 8."""


_SMALLEST_PIECE = 128
"""Queries at once where the window is smaller."""


class CausalAttentionCore(nn.Module):
    """Causal attention over the heads of one tensor rank, in the form megatron-core's SelfAttention calls."""

    def __init__(
        self,
        config: TransformerConfig,
        softmax_scale: float | None = None,
        window_tokens: int | None = None,
        **_unused: Any,
    ):
        super().__init__()
        self.softmax_scale, self.window_tokens = softmax_scale, window_tokens

    def forward(
        self,
        query_TBHK: Tensor,
        key_TBGK: Tensor,
        value_TBGK: Tensor,
        attention_mask: Documents | None,
        **_unused: Any,
    ) -> Tensor:
        """Returns `[T, B, H * K]`. Causality is built in: what megatron-core calls a mask are the documents, if tokens
        are to see no further than their own."""
        tokens, batch, heads, width = query_TBHK.shape
        if attention_mask is None:
            return self._in_windows(query_TBHK, key_TBGK, value_TBGK)
        packed = (tensor.transpose(0, 1).flatten(0, 1) for tensor in (query_TBHK, key_TBGK, value_TBGK))
        output_PHK = attend_inside(attention_mask, *packed, scale=self.softmax_scale, sees=self.window_tokens)
        return output_PHK.view(batch, tokens, heads * width).transpose(0, 1)

    def _in_windows(self, query_TBHK: Tensor, key_TBGK: Tensor, value_TBGK: Tensor) -> Tensor:
        tokens, batch, heads, width = query_TBHK.shape
        output_BHTK = attend(
            query_TBHK.permute(1, 2, 0, 3),
            key_TBGK.permute(1, 2, 0, 3),
            value_TBGK.permute(1, 2, 0, 3),
            scale=self.softmax_scale,
            sees=self.window_tokens,
        )
        return output_BHTK.permute(2, 0, 1, 3).reshape(tokens, batch, heads * width)


def attend(
    query_BHTK: Tensor, key_BGTK: Tensor, value_BGTK: Tensor, *, scale: float | None, sees: int | None
) -> Tensor:
    """Causal attention, `[B, H, T, K]`; every token sees the last `sees` tokens, itself included, None for all.

    A window goes in pieces, each with the keys that one of its queries sees: work grows with the window.
    """
    tokens, grouped = query_BHTK.shape[2], key_BGTK.shape[1] != query_BHTK.shape[1]
    if sees is None or sees >= tokens:
        return F.scaled_dot_product_attention(
            query_BHTK, key_BGTK, value_BGTK, is_causal=True, scale=scale, enable_gqa=grouped
        )
    outputs = []
    for start in range(0, tokens, piece := max(sees, _SMALLEST_PIECE)):
        stop, first = min(start + piece, tokens), max(0, start - sees + 1)
        seen_TS = band(start, stop, first, sees, query_BHTK.device)
        key, value = key_BGTK[:, :, first:stop], value_BGTK[:, :, first:stop]
        query = query_BHTK[:, :, start:stop]
        outputs.append(F.scaled_dot_product_attention(query, key, value, seen_TS, scale=scale, enable_gqa=grouped))
    return torch.cat(outputs, dim=2)


def band(start: int, stop: int, first: int, sees: int, device: torch.device) -> Tensor:
    """Which of the keys from `first` on each query from `start` on sees, up to `stop`: bool `[queries, keys]`."""
    query, key = torch.arange(start, stop, device=device)[:, None], torch.arange(first, stop, device=device)
    return (key <= query) & (key > query - sees)


def varlen_attn(*arguments: Any, **options: Any) -> Tensor:
    """torch's kernel for documents of many lengths. Its module loads torch's compiler, so only if used."""
    from torch.nn.attention.varlen import varlen_attn as kernel

    output = kernel(*arguments, **options)
    assert isinstance(output, Tensor), "nothing else was asked for"
    return output


def attend_inside(
    documents: Documents,
    query_PHK: Tensor,
    key_PGK: Tensor,
    value_PGK: Tensor,
    *,
    scale: float | None,
    sees: int | None = None,
) -> Tensor:
    """Causal attention inside each document alone, `[P, H, K]`: no kernel is ever given two documents as one.

    On GPUs in half precision that is one kernel for all; elsewhere one call a document, and cheaper than whole windows,
    because work grows with the square of what is seen.
    """
    grouped = key_PGK.shape[1] != query_PHK.shape[1]
    if has_varlen_kernel(query_PHK):
        bounds, longest = documents.bounds, documents.longest
        # How many before, -1 for all; and nothing after.
        before = -1 if sees is None else sees - 1
        options: dict[str, Any] = {"scale": scale, "window_size": (before, 0), "enable_gqa": grouped}
        return varlen_attn(query_PHK, key_PGK, value_PGK, bounds, bounds, longest, longest, **options)
    # Split at once: backward then joins the gradients once, where slices would each fill a whole tensor.
    packed = (query_PHK.transpose(0, 1), key_PGK.transpose(0, 1), value_PGK.transpose(0, 1))
    split = zip(*(tensor.split(documents.lengths, dim=1) for tensor in packed), strict=True)
    outputs = [attend(q[None], k[None], v[None], scale=scale, sees=sees)[0] for q, k, v in split]
    return torch.cat([output_HPK.transpose(0, 1) for output_HPK in outputs])


def has_varlen_kernel(query_PHK: Tensor) -> bool:
    """Whether torch's kernel for documents of many lengths takes this query."""
    width = query_PHK.shape[-1]
    half = query_PHK.dtype in (torch.bfloat16, torch.float16)
    return query_PHK.is_cuda and half and width <= _WIDEST_HEAD and width % 8 == 0
