"""What a branch is: the tensors it has, what it costs, and how megatron-core builds it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from attnres_train.model.config import ModelConfig
from attnres_train.model.cost import Cost
from attnres_train.model.tensors import TensorSpec

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig
    from torch import Tensor, nn

    from attnres_train.model.documents import Documents

ADD_PASSES = 3
"""Over the width: the output of every branch joins the running sum."""


class Branch(Protocol):
    """One branch of a model: a plain value; torch is imported only to build it."""

    @property
    def name(self) -> str:
        """Of the sublayer in its layer."""
        ...

    def tensors(self) -> tuple[TensorSpec, ...]:
        """In the order in which the module holds them, names as in the module."""
        ...

    def cost(self) -> Cost: ...

    def build(self, config: TransformerConfig, layer: int, groups: ProcessGroupCollection) -> nn.Module:
        """The module of transformer layer `layer` (from 0): from the normalised input to the output and a bias that
        is None."""
        ...

    def arguments(self, rotary: Tensor, documents: Documents | None) -> dict[str, Any]:
        """What the module is called with besides its input."""
        ...


def output_init_std(model: ModelConfig) -> float:
    """Initial standard deviation of the projections back into the residual: init_std / sqrt(2 num_layers)."""
    return model.init_std / math.sqrt(2 * model.num_layers)
