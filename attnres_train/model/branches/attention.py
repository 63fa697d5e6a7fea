"""Grouped-query self-attention with rotary positions, and RMSNorm on queries and keys if asked for.

Legend: D width, H query heads and G key/value heads, K width of a head; H K = D.
"""

from __future__ import annotations

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


class Attention(Branch):
    name = "attention"

    def tensors(self) -> tuple[TensorSpec, ...]:
        model, width = self.model, self.model.hidden_size
        maps = (
            TensorSpec("linear_proj.weight", Sharding((width, width), axis=1), True, std=self.output_std),
            TensorSpec("linear_qkv.weight", Sharding((self._qkv, width), axis=0), True, std=model.init_std),
        )
        gain = Sharding((model.head_size,))
        names = ("q_layernorm.weight", "k_layernorm.weight") if model.qk_norm else ()
        return (*maps, *(TensorSpec(name, gain, False, value=1.0, per_head=True) for name in names))

    def cost(self) -> Cost:
        """Kept are q, k, v; q and k rotated; the kernel's output, and its transpose; with QK norm what it
        normalises."""
        model, width = self.model, self.model.hidden_size
        key_value = model.query_groups * model.head_size
        heads = width + key_value
        normed = heads if model.qk_norm else 0
        passes = _ROTARY_PASSES * heads + _COPY_PASSES * width + _HEAD_NORM_PASSES * normed
        return Cost(
            matrices=width * (width + self._qkv),
            attended=2 * width,
            kept=Elements(width, 4 * width + 3 * key_value + normed),
            passes=Elements(ADD_PASSES * width, passes),
            operations=_OPERATIONS,
            gathers=1,
            scatters=1,
        )

    @property
    def _qkv(self) -> int:
        return (self.model.num_attention_heads + 2 * self.model.query_groups) * self.model.head_size

    def build(self, config: TransformerConfig, layer: int, groups: ProcessGroupCollection) -> nn.Module:
        from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
        from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
        from megatron.core.transformer.enums import AttnMaskType

        from attnres_train.model.attention_core import CausalAttentionCore
        from attnres_train.model.norm import RMSNorm

        head_norm = RMSNorm if self.model.qk_norm else None
        parts = SelfAttentionSubmodules(
            linear_qkv=ColumnParallelLinear,
            core_attention=CausalAttentionCore,
            linear_proj=RowParallelLinear,
            q_layernorm=head_norm,
            k_layernorm=head_norm,
        )
        return SelfAttention(config, parts, layer + 1, AttnMaskType.causal, pg_collection=groups)

    def arguments(self, rotary: Tensor, documents: Documents | None) -> dict[str, Any]:
        """What megatron-core calls a mask are the documents: causality is the kernel's."""
        return {"attention_mask": documents, "rotary_pos_emb": rotary}
