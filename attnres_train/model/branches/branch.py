"""What a branch is: the tensors it has, what it costs, and how megatron-core builds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

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


@dataclass(frozen=True)
class Branch(ABC):
    """One branch of a model: a plain value; torch is imported only to build it."""

    model: ModelConfig
    name: ClassVar[str]
    """Of the sublayer in its layer."""

    @abstractmethod
    def tensors(self) -> tuple[TensorSpec, ...]:
        """In the order in which the module holds them, names as in the module; its persistent buffers too."""

    @abstractmethod
    def cost(self) -> Cost: ...

    @abstractmethod
    def build(self, config: TransformerConfig, layer: int, groups: ProcessGroupCollection) -> nn.Module:
        """The module of transformer layer `layer` (from 0): from the normalised input to the output and a bias that
        is to be added to it, None where there is none."""

    def arguments(self, rotary: Tensor, documents: Documents | None) -> dict[str, Any]:
        """What the module is called with besides its input."""
        return {}

    @property
    def output_std(self) -> float:
        """Initial standard deviation of projections back into the residual: init_std / sqrt(2 num_layers)."""
        return self.model.init_std / (2 * self.model.num_layers) ** 0.5
