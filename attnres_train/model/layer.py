"""One transformer layer: two sublayers, each reading the depth and adding to it."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn

from attnres_train.depth.config import ResidualConfig
from attnres_train.depth.history import History
from attnres_train.depth.layout import DepthLayout
from attnres_train.depth.mix import Norm
from attnres_train.depth.reader import DepthReader
from attnres_train.model.branches.branch import Branch
from attnres_train.model.branches.choose import branches_of
from attnres_train.model.config import ModelConfig
from attnres_train.model.documents import Documents
from attnres_train.model.norm import RMSNorm
from attnres_train.model.recompute import Recompute, made_again


class Sublayer(nn.Module):
    """history -> read the depth, with the branch's norm -> branch -> history with one more output.

    The read goes only into the branch; how its output enters the history is the residual mode's.
    """

    def __init__(
        self,
        branch: Branch,
        config: TransformerConfig,
        residual: ResidualConfig,
        layout: DepthLayout,
        index: int,
        groups: ProcessGroupCollection,
        recompute: Recompute,
    ):
        super().__init__()
        self.remake_read = recompute == "depth"
        self.depth = DepthReader(residual, layout, index, config.hidden_size, config.layernorm_epsilon)
        self.norm = RMSNorm(config, config.hidden_size, config.layernorm_epsilon)
        self.branch = branch.build(config, index // 2, groups)
        self.arguments = branch.arguments

    def forward(self, history: History, rotary: Tensor, documents: Documents | None) -> History:
        def read() -> Tensor:
            return self.depth.read(history, Norm(self.norm.weight, self.norm.eps))

        read_TBD = read()
        remake = self.remake_read and torch.is_grad_enabled()
        with made_again(read_TBD, read) if remake else nullcontext():
            output_TBD, _no_bias = self.branch(read_TBD, **self.arguments(rotary, documents))
        return self.depth.write(history, read_TBD, output_TBD)


class TransformerLayer(nn.Module):
    """Both sublayers of transformer layer `index` (from 0 over the whole model), by the names of their branches."""

    def __init__(
        self,
        model: ModelConfig,
        config: TransformerConfig,
        residual: ResidualConfig,
        layout: DepthLayout,
        index: int,
        groups: ProcessGroupCollection,
        recompute: Recompute,
    ):
        super().__init__()
        for number, branch in enumerate(branches_of(model, index), start=2 * index):
            self.add_module(branch.name, Sublayer(branch, config, residual, layout, number, groups, recompute))

    def forward(self, history: History, rotary: Tensor, documents: Documents | None = None) -> History:
        """`rotary` holds the angles of every position, `[T, 1, 1, K]`; attention stays inside `documents`, if any."""
        for sublayer in self.sublayers:
            history = sublayer(history, rotary=rotary, documents=documents)
        return history

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        return tuple(child for child in self.children() if isinstance(child, Sublayer))
