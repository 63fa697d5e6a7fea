"""A model of a Hugging Face folder as the beginning of a run: its weights at step 0, everything else new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attnres_train.engine.interface import StatePart
from attnres_train.engine.kinds import MOMENTS, Kind, kinds_of
from attnres_train.model.parameters import LogicalParameter
from attnres_train.model.sharding import Sharding
from attnres_train.model.tensors import TensorSpec


@dataclass(frozen=True)
class NewState:
    """What a save asks of an engine: imported weights, moments at zero, no update yet."""

    weights: Sequence[tuple[TensorSpec, Tensor]]
    """Whole, without padding, fp32."""
    averages: bool = False
    """Whether a mean of the weights is kept, which begins as they are."""

    @property
    def updates(self) -> int:
        return 0

    def parameters(self) -> Sequence[LogicalParameter]:
        whole = [replace(spec, sharding=Sharding(spec.shape)) for spec, _ in self.weights]
        return [
            LogicalParameter(spec, tensor, tensor.shape) for spec, (_, tensor) in zip(whole, self.weights, strict=True)
        ]

    def kinds(self, spec: TensorSpec) -> tuple[Kind, ...]:
        return kinds_of(spec, self.averages)

    def share(self) -> Iterator[StatePart]:
        for logical in self.parameters():
            for kind in self.kinds(logical.spec):
                moment = self._zeros[: logical.numel].view(logical.shape)
                tensor = moment if kind in MOMENTS else logical.parameter
                yield StatePart(kind, logical, slice(0, logical.numel), tensor)

    @cached_property
    def _zeros(self) -> Tensor:
        """All moments are views of one tensor: nothing writes into them."""
        return torch.zeros(max(tensor.numel() for _, tensor in self.weights))
