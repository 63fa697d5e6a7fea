"""From the `[model]` section to the branches of a layer."""

from __future__ import annotations

from attnres_train.model.branches.attention import Attention
from attnres_train.model.branches.branch import Branch
from attnres_train.model.branches.mlp import Mlp
from attnres_train.model.config import ModelConfig


def branches_of(model: ModelConfig, layer: int) -> tuple[Branch, Branch]:
    """Those of transformer layer `layer` (from 0), one a sublayer."""
    return Attention(model, model.sees(layer)), Mlp(model)
