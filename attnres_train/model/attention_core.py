"""The attention kernel where TransformerEngine is absent: torch's scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn


class CausalAttentionCore(nn.Module):
    """Causal attention over the heads of one tensor rank, in the form megatron-core's SelfAttention calls.

    Legend: T tokens, B batch, H query heads, G key/value heads (H a multiple of G), K head width.
    """

    def __init__(self, config: TransformerConfig, softmax_scale: float | None = None, **_unused: Any):
        super().__init__()
        self.softmax_scale = softmax_scale

    def forward(
        self, query_TBHK: Tensor, key_TBGK: Tensor, value_TBGK: Tensor, attention_mask: None, **_unused: Any
    ) -> Tensor:
        """Returns `[T, B, H * K]`. There is no mask argument: causality is built in."""
        assert attention_mask is None, "this core is causal by itself and takes no mask"
        tokens, batch, heads, width = query_TBHK.shape
        output_BHTK = F.scaled_dot_product_attention(
            query_TBHK.permute(1, 2, 0, 3),
            key_TBGK.permute(1, 2, 0, 3),
            value_TBGK.permute(1, 2, 0, 3),
            is_causal=True,
            scale=self.softmax_scale,
            enable_gqa=key_TBGK.shape[2] != heads,
        )
        return output_BHTK.permute(2, 0, 1, 3).reshape(tokens, batch, heads * width)
