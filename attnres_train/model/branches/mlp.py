"""SwiGLU MLP: down(silu(gate x) * up x), F wide inside; gate and up are stacked in one matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnres_train.model.branches.branch import ADD_PASSES, Branch
from attnres_train.model.cost import Cost, Elements
from attnres_train.model.sharding import Sharding
from attnres_train.model.tensors import TensorSpec

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig
    from torch import nn

_KEPT = 5
"""Of width F: gate and up, silu, up again, and their product."""
_PASSES = 5
"""Over F: silu reads and writes, the product reads two and writes one."""
_GRADIENTS = 3
"""Of width F that stand at once in backward, beyond what it frees: of the product, of gate and of up."""
_OPERATIONS = 25


class Mlp(Branch):
    name = "mlp"

    def tensors(self) -> tuple[TensorSpec, ...]:
        model, width, inner = self.model, self.model.hidden_size, self.model.ffn_hidden_size
        stacked = Sharding((2 * inner, width), axis=0, blocks=2)
        return (
            TensorSpec("linear_fc1.weight", stacked, True, std=model.init_std),
            TensorSpec("linear_fc2.weight", Sharding((width, inner), axis=1), True, std=self.output_std),
        )

    def cost(self) -> Cost:
        width, inner = self.model.hidden_size, self.model.ffn_hidden_size
        return Cost(
            matrices=3 * width * inner,
            kept=Elements(width, _KEPT * inner),
            passes=Elements(ADD_PASSES * width, _PASSES * inner),
            operations=_OPERATIONS,
            gathers=1,
            scatters=1,
            moment=Elements(width, _GRADIENTS * inner),
            moment_parameters=2 * inner * width,
        )

    def build(self, config: TransformerConfig, layer: int, groups: ProcessGroupCollection) -> nn.Module:
        from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
        from megatron.core.transformer.mlp import MLP, MLPSubmodules

        parts = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
        return MLP(config, parts, ffn_hidden_size=self.model.ffn_hidden_size, tp_group=groups.tp)
