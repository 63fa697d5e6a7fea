"""The parameters and buffers of a stage beside what is said of them, and their initial values.

Names and values belong to the model, not to the layout: the same seed gives the same logical weights on any
grid, and a checkpoint written by one grid reads under any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnres_train.model.sharding import Sharding
from attnres_train.model.stage import StageModel
from attnres_train.model.tensors import TensorSpec


@dataclass(frozen=True)
class LogicalParameter:
    """One parameter of a stage, or a buffer, and the logical tensor that it is a part of."""

    spec: TensorSpec
    parameter: Tensor
    shape: torch.Size
    """Of the rank's tensor; `parameter` itself is empty between its uses where an engine partitions weights."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def sharding(self) -> Sharding:
        return self.spec.sharding

    @property
    def owned(self) -> bool:
        return self.spec.owned

    @property
    def numel(self) -> int:
        return self.shape.numel()


def logical_parameters(stage: StageModel) -> Iterator[LogicalParameter]:
    """The parameters of `stage`, then its buffers, in a fixed order."""
    for spec, parameter in zip(stage.tensors, stage.parameters(), strict=True):
        yield LogicalParameter(spec, parameter, parameter.shape)
    held = stage.persistent_buffers()
    for spec in stage.buffer_tensors:
        yield LogicalParameter(spec, held[spec.name], held[spec.name].shape)


def initialize(stage: StageModel, seed: int) -> None:
    """Set every parameter and buffer of `stage` to its initial value, the same under every layout.

    Each is drawn from its own stream, seeded by (seed, name); padded vocabulary rows are zero.
    """
    rank, ranks = stage.tensor_group.rank(), stage.tensor_group.size()
    with torch.no_grad():
        for logical in logical_parameters(stage):
            logical.parameter.copy_(logical.sharding.cut(draw(logical.spec, seed), rank, ranks))


def draw(spec: TensorSpec, seed: int) -> Tensor:
    """The initial logical tensor, fp32 on the CPU."""
    value = torch.full(spec.shape, spec.value)
    if not spec.std:
        return value
    digest = hashlib.sha256(f"{seed}/{spec.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return value.normal_(spec.value, spec.std, generator=generator)
