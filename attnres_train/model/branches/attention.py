"""Grouped-query self-attention with rotary positions, and RMSNorm on queries and keys if asked for.

Legend: D width, H query heads and G key/value heads, K width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from attnres_train.model.branches.branch import ADD_PASSES, Branch
from attnres_train.model.cost import Cost, Elements
from attnres_train.model.sharding import Sharding
from attnres_train.model.tensors import TensorSpec

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig
    from torch import Tensor, nn

    from attnres_train.model.documents import Documents

# Elements that torch's unfused operations read and write, a token; megatron-core 0.16.1 without TransformerEngine.
_ROTARY_PASSES = 9
"""Over q and k: rotate half (copy, negate), two products, one sum."""
_HEAD_NORM_PASSES = 4
"""Over q and k, with `qk_norm`."""
_COPY_PASSES = 2
"""Over D: the attention kernel's output into rows."""
_OPERATIONS = 45


@dataclass(frozen=True)
class Attention(Branch):
    name = "attention"
    window_tokens: int | None = None
    """That a token sees, itself included; None is all before it."""

    def tensors(self) -> tuple[TensorSpec, ...]:
        model, width = self.model, self.model.hidden_size
        output, inputs = Sharding((width, self._queries), axis=1), Sharding((self._qkv, width), axis=0)
        tensors = [TensorSpec("linear_proj.weight", output, True, std=self.output_std)]
        if model.attention_output_bias:
            tensors.append(TensorSpec("linear_proj.bias", Sharding((width,)), False))
        tensors.append(TensorSpec("linear_qkv.weight", inputs, True, std=model.init_std))
        if model.qkv_bias:
            tensors.append(TensorSpec("linear_qkv.bias", Sharding((self._qkv,), axis=0), False))
        gain = Sharding((model.head_size,))
        names = ("q_layernorm.weight", "k_layernorm.weight") if model.qk_norm else ()
        return (*tensors, *(TensorSpec(name, gain, False, value=1.0, per_head=True) for name in names))

    def cost(self) -> Cost:
        """Kept are q, k, v; q and k rotated; the kernel's output, and its transpose; with QK norm what it
        normalises."""
        model, width, queries = self.model, self.model.hidden_size, self._queries
        key_value = model.query_groups * model.head_size
        heads = queries + key_value
        normed = heads if model.qk_norm else 0
        passes = _ROTARY_PASSES * heads + _COPY_PASSES * queries + _HEAD_NORM_PASSES * normed
        added = ADD_PASSES * width * (2 if model.attention_output_bias else 1)
        return Cost(
            matrices=width * (queries + self._qkv),
            attended=((2 * queries, self.window_tokens),),
            kept=Elements(width, 4 * queries + 3 * key_value + normed),
            passes=Elements(added, passes),
            operations=_OPERATIONS,
            gathers=1,
            scatters=1,
        )

    @property
    def _queries(self) -> int:
        return self.model.num_attention_heads * self.model.head_size

    @property
    def _qkv(self) -> int:
        return (self.model.num_attention_heads + 2 * self.model.query_groups) * self.model.head_size

    def build(self, config: TransformerConfig, layer: int, groups: ProcessGroupCollection) -> nn.Module:
        from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
        from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
        from megatron.core.transformer.enums import AttnMaskType

        from attnres_train.model.attention_core import CausalAttentionCore
        from attnres_train.model.norm import RMSNorm
        from attnres_train.model.output_bias import RowParallelLinearWithBias

        head_norm = RMSNorm if self.model.qk_norm else None
        parts = SelfAttentionSubmodules(
            linear_qkv=ColumnParallelLinear,
            core_attention=partial(CausalAttentionCore, window_tokens=self.window_tokens),
            linear_proj=RowParallelLinearWithBias if self.model.attention_output_bias else RowParallelLinear,
            q_layernorm=head_norm,
            k_layernorm=head_norm,
        )
        return SelfAttention(config, parts, layer + 1, AttnMaskType.causal, pg_collection=groups)

    def arguments(self, rotary: Tensor, documents: Documents | None) -> dict[str, Any]:
        """What megatron-core calls a mask are the documents: causality is the kernel's."""
        return {"attention_mask": documents, "rotary_pos_emb": rotary}
