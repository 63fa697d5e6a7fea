"""Parameters by logical name: their whole shapes, how they are cut, and the initial values.

Names and values belong to the model, not to the layout: the same seed gives the same logical weights on any
grid, and a checkpoint written by one grid reads under any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnres_train.depth.modes.mode import Initial
from attnres_train.depth.reader import DepthReader
from attnres_train.model.config import ModelConfig
from attnres_train.model.sharding import Sharding
from attnres_train.model.spec import output_init_std
from attnres_train.model.stage import StageModel


@dataclass(frozen=True)
class LogicalParameter:
    """One parameter of a stage under its name in the whole model."""

    name: str
    parameter: nn.Parameter
    sharding: Sharding
    owned: bool
    """False for the second copy of a tied embedding: same name, same values, counted and saved once."""
    shape: torch.Size
    """Of the rank's tensor; `parameter` itself is empty between its uses where an engine partitions weights."""

    @property
    def numel(self) -> int:
        return self.shape.numel()


def logical_parameters(stage: StageModel, vocabulary_size: int, tensor_ranks: int) -> Iterator[LogicalParameter]:
    """The parameters of `stage`, in a fixed order, with the logical shape each is a part of."""
    for name, parameter in stage.named_parameters():
        owned = not getattr(parameter, "shared", False)
        sharding = _sharding(name, parameter, vocabulary_size, tensor_ranks)
        yield LogicalParameter(name, parameter, sharding, owned, parameter.shape)


def _sharding(name: str, parameter: nn.Parameter, vocabulary_size: int, ranks: int) -> Sharding:
    """megatron-core marks what it cut: `partition_dim`, and `partition_stride` 2 for stacked gate and up."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return Sharding(tuple(parameter.shape))
    axis: int = parameter.partition_dim  # type: ignore[attr-defined]
    stride: int = parameter.partition_stride  # type: ignore[attr-defined]
    whole = [size * ranks if index == axis else size for index, size in enumerate(parameter.shape)]
    if name in ("embedding.weight", "head.projection.weight"):
        return Sharding((vocabulary_size, *whole[1:]), axis=0, padded=whole[0])
    return Sharding(tuple(whole), axis, blocks=stride)


def initialize(
    stage: StageModel,
    model: ModelConfig,
    *,
    seed: int,
    vocabulary_size: int,
    tensor_rank: int,
    tensor_ranks: int,
) -> None:
    """Set every parameter of `stage` to its initial value, the same under every layout.

    Matrices are normal with `init_std`, those that write into the residual (`linear_proj`, `linear_fc2`) with
    init_std / sqrt(2 num_layers); norm gains are one; parameters of the depth readers start as their mode says
    (queries at exactly zero); padded vocabulary rows are zero. Each is drawn from its own stream, seeded by
    (seed, name).
    """
    depth = _depth_initials(stage)
    with torch.no_grad():
        for logical in logical_parameters(stage, vocabulary_size, tensor_ranks):
            shape = logical.sharding.shape
            initial = depth.get(logical.name) or initial_of(logical.name, shape, model)
            value = draw(initial, logical.name, seed)
            logical.parameter.copy_(logical.sharding.cut(value, tensor_rank, tensor_ranks))


def initial_of(name: str, shape: tuple[int, ...], model: ModelConfig) -> Initial:
    """How a parameter outside the depth readers starts."""
    if len(shape) == 1:
        return Initial(shape, 1.0)
    writes_residual = name.endswith(("linear_proj.weight", "linear_fc2.weight"))
    return Initial(shape, 0.0, std=output_init_std(model) if writes_residual else model.init_std)


def _depth_initials(stage: StageModel) -> dict[str, Initial]:
    """What the residual mode says of the parameters of its readers, by name in the model."""
    return {
        f"{path}.{name}": initial
        for path, module in stage.named_modules()
        if isinstance(module, DepthReader)
        for name, initial in module.initial.items()
    }


def draw(initial: Initial, name: str, seed: int) -> Tensor:
    """The initial logical tensor of `name`, fp32 on the CPU."""
    value = torch.full(initial.shape, initial.value)
    if not initial.std:
        return value
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return value.normal_(initial.value, initial.std, generator=generator)
