"""One transformer layer: two sublayers, each reading the depth and adding to it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import ModuleSpec, TransformerConfig, build_module
from torch import Tensor, nn

from attnres_train.depth.config import ResidualConfig
from attnres_train.depth.history import History
from attnres_train.depth.layout import DepthLayout
from attnres_train.depth.mix import Norm
from attnres_train.depth.reader import DepthReader
from attnres_train.model.documents import Documents
from attnres_train.model.norm import RMSNorm
from attnres_train.model.recompute import Recompute, made_again
from attnres_train.model.spec import attention_spec, mlp_spec


class Sublayer(nn.Module):
    """history -> read the depth, with the branch's norm -> branch -> history with one more output.

    The read goes only into the branch; how its output enters the history is the residual mode's.
    """

    def __init__(
        self,
        branch: nn.Module,
        config: TransformerConfig,
        residual: ResidualConfig,
        layout: DepthLayout,
        index: int,
        recompute: Recompute,
    ):
        super().__init__()
        self.remake_read = recompute == "depth"
        self.depth = DepthReader(residual, layout, index, config.hidden_size, config.layernorm_epsilon)
        self.norm = RMSNorm(config, config.hidden_size, config.layernorm_epsilon)
        self.branch = branch

    def forward(self, history: History, **branch_arguments: Any) -> History:
        def read() -> Tensor:
            return self.depth.read(history, Norm(self.norm.weight, self.norm.eps))

        read_TBD = read()
        remake = self.remake_read and torch.is_grad_enabled()
        with made_again(read_TBD, read) if remake else nullcontext():
            output_TBD, _no_bias = self.branch(read_TBD, **branch_arguments)
        return self.depth.write(history, read_TBD, output_TBD)


class TransformerLayer(nn.Module):
    """Attention and MLP of transformer layer `index` (from 0 over the whole model)."""

    def __init__(
        self,
        config: TransformerConfig,
        residual: ResidualConfig,
        layout: DepthLayout,
        index: int,
        groups: ProcessGroupCollection,
        recompute: Recompute,
    ):
        super().__init__()
        attention = build_module(
            attention_spec(config.qk_layernorm), config=config, layer_number=index + 1, pg_collection=groups
        )
        self.attention = Sublayer(attention, config, residual, layout, 2 * index, recompute)
        mlp = _mlp(mlp_spec(), config, groups)
        self.mlp = Sublayer(mlp, config, residual, layout, 2 * index + 1, recompute)

    def forward(self, history: History, rotary: Tensor, documents: Documents | None = None) -> History:
        """`rotary` holds the angles of every position, `[T, 1, 1, K]`; attention stays inside `documents`, if any."""
        history = self.attention(history, attention_mask=documents, rotary_pos_emb=rotary)
        return self.mlp(history)


def _mlp(spec: ModuleSpec, config: TransformerConfig, groups: ProcessGroupCollection) -> nn.Module:
    return build_module(spec, config=config, tp_group=groups.tp, ffn_hidden_size=config.ffn_hidden_size)
