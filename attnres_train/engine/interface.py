"""What the trainer asks of an engine: gradients, clipping and optimizer state, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from attnres_train.engine.kinds import Kind
from attnres_train.model.parameters import LogicalParameter
from attnres_train.model.tensors import TensorSpec


@dataclass(frozen=True)
class Update:
    """Outcome of one optimizer step. `grad_norm` is the global norm before clipping."""

    grad_norm: float
    applied: bool


class StatePart(NamedTuple):
    """One kind of the state of one parameter, or of a buffer: the elements that a rank has of it."""

    kind: Kind
    logical: LogicalParameter
    owned: slice
    """Which they are in the flat form of the rank's tensor."""
    tensor: Tensor
    """fp32; flat, or of the shape of the rank's tensor where it is all of it."""

    @property
    def key(self) -> str:
        """Its name in a checkpoint."""
        return f"{self.kind.stored}/{self.logical.name}"


class StateSource(Protocol):
    """What a checkpoint is saved from."""

    @property
    def updates(self) -> int:
        """Optimizer steps applied so far."""

    def parameters(self) -> Sequence[LogicalParameter]:
        """The logical parameters of all chunks of this rank, and then their buffers."""

    def kinds(self, spec: TensorSpec) -> tuple[Kind, ...]:
        """What is kept of a tensor, and so what `share` has of it; the master first."""

    def share(self) -> Iterator[StatePart]:
        """What this rank saves, one whole tensor at a time, in host memory that nobody else changes: each parameter on
        one of the data-parallel ranks alone. A collective over them, which all must follow to the end."""


class Engine(StateSource, Protocol):
    """Owner of gradients and optimizer state around the model chunks of one rank."""

    @property
    def chunks(self) -> Sequence[nn.Module]:
        """The wrapped chunks, in the form the pipeline schedule runs them."""

    def zero_grad(self) -> None:
        """Forget the gradients of the step before."""

    def finalize(self, chunks: list[nn.Module], num_tokens: Tensor | None, /, **groups: Any) -> None:
        """What megatron-core's schedule calls after the last backward: gradients become those of the mean loss."""

    def step(self, learning_rate: float) -> Update:
        """Clip by the global norm and update, or skip where the norm is not finite: all ranks alike."""

    def held(self) -> Iterator[StatePart]:
        """What this data-parallel rank updates of owned parameters, and every buffer, as flat views: what is written
        into them counts from the next `restored` on."""

    def restored(self, updates: int) -> None:
        """The state in `held` is that after `updates` steps: weights become the masters, rounded, and the second copy
        of a tied table gets the state of the first. A collective over all ranks."""
