"""What the trainer asks of an engine: gradients, clipping and optimizer state, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from attnres_train.model.parameters import LogicalParameter


@dataclass(frozen=True)
class Update:
    """Outcome of one optimizer step. `grad_norm` is the global norm before clipping."""

    grad_norm: float
    applied: bool


@dataclass(frozen=True)
class OptimizerState:
    """One parameter's state, a tensor of each of KINDS (kinds.py): fp32 and shaped like the rank's whole parameter."""

    master: Tensor
    first_moment: Tensor
    second_moment: Tensor


class StateSource(Protocol):
    """What a checkpoint is saved from."""

    @property
    def updates(self) -> int:
        """Optimizer steps applied so far."""

    def parameters(self) -> Sequence[LogicalParameter]:
        """The logical parameters of all chunks of this rank."""

    def export_share(self) -> Mapping[str, OptimizerState]:
        """Weights and moments by logical name, each parameter on one of the data-parallel ranks alone, in host memory
        that nobody else changes: what that rank saves. A collective over them."""


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

    def gradients(self) -> Mapping[str, Tensor]:
        """The fp32 gradients of the rank's owned parameters by logical name, reduced, before clipping."""

    def export_state(self) -> Mapping[str, OptimizerState]:
        """Weights and moments by logical name; a collective over the data-parallel ranks."""

    def import_state(self, states: Mapping[str, OptimizerState], updates: int) -> None:
        """Set weights, masters and moments, and the number of updates they have seen.

        A parameter that `states` lacks stays as it is.
        """
