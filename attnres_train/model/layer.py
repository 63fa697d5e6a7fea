"""One transformer layer: two sublayers, each reading the depth and adding to it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Plans:
    """What the modules of a stage are built after."""

    model: ModelConfig
    residual: ResidualConfig
    layout: DepthLayout
    config: TransformerConfig
    groups: ProcessGroupCollection
    recompute: Recompute


class ReadsDepth(nn.Module):
    """Reader number `index` of the model, and the norm of what reads through it."""

    def __init__(self, plans: Plans, index: int):
        super().__init__()
        width, eps = plans.model.hidden_size, plans.model.norm_eps
        self.depth = DepthReader(plans.residual, plans.layout, index, width, eps)
        self.norm = RMSNorm(plans.config, width, self.depth.norm_eps(eps))

    def read(self, history: History) -> Tensor:
        """The normalised input, `[T, B, D]`."""
        return self.depth.read(history, Norm(self.norm.weight, self.norm.eps))


class Sublayer(ReadsDepth):
    """history -> read the depth, with the branch's norm -> branch -> history with one more output.

    The read goes only into the branch; how its output enters the history is the residual mode's.
    """

    def __init__(self, branch: Branch, plans: Plans, index: int):
        super().__init__(plans, index)
        self.remake_read = plans.recompute == "depth"
        self.branch = branch.build(plans.config, index // 2, plans.groups)
        self.arguments = branch.arguments

    def forward(self, history: History, rotary: Tensor, documents: Documents | None) -> History:
        read_TBD = self.read(history)
        remake = self.remake_read and torch.is_grad_enabled()
        with made_again(read_TBD, lambda: self.read(history)) if remake else nullcontext():
            output_TBD, bias_D = self.branch(read_TBD, **self.arguments(rotary, documents))
        if bias_D is not None:
            output_TBD = output_TBD + bias_D
        return self.depth.write(history, read_TBD, output_TBD)


class TransformerLayer(nn.Module):
    """Both sublayers of transformer layer `index` (from 0 over the whole model), by the names of their branches."""

    def __init__(self, plans: Plans, index: int):
        super().__init__()
        for number, branch in enumerate(branches_of(plans.model, index), start=2 * index):
            self.add_module(branch.name, Sublayer(branch, plans, number))

    def forward(self, history: History, rotary: Tensor, documents: Documents | None = None) -> History:
        """`rotary` holds the angles of every position, `[T, 1, 1, K]`; attention stays inside `documents`, if any."""
        for sublayer in self.sublayers:
            history = sublayer(history, rotary=rotary, documents=documents)
        return history

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        return tuple(child for child in self.children() if isinstance(child, Sublayer))
