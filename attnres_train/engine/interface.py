"""What the trainer asks of an engine: gradients, clipping and optimizer state, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from attnres_train.model.parameters import LogicalParameter


@dataclass(frozen=True)
class Update:
    """Outcome of one optimizer step. `grad_norm` is the global norm before clipping."""

    grad_norm: float
    applied: bool


@dataclass(frozen=True)
class OptimizerState:
    """One parameter's state, each tensor fp32 and shaped like the rank's whole parameter."""

    master: Tensor
    first_moment: Tensor
    second_moment: Tensor


class Engine(Protocol):
    """Owner of gradients and optimizer state around the model chunks of one rank."""

    updates: int
    """Optimizer steps applied so far."""

    @property
    def chunks(self) -> Sequence[nn.Module]:
        """The wrapped chunks, in the form the pipeline schedule runs them."""

    def zero_grad(self) -> None:
        """Forget the gradients of the step before."""

    def step(self, learning_rate: float) -> Update:
        """Clip by the global norm and update, or skip where the norm is not finite: all ranks alike."""

    def gradients(self) -> Mapping[str, Tensor]:
        """The fp32 gradients of the rank's owned parameters by logical name, reduced, before clipping."""

    def export_state(self) -> Mapping[str, OptimizerState]:
        """Weights and moments by logical name; a collective over the data-parallel ranks."""

    def export_share(self) -> Mapping[str, OptimizerState]:
        """The same, but each parameter on one of the data-parallel ranks alone, in new host memory: what that rank
        saves. A collective over them."""

    def import_state(self, states: Mapping[str, OptimizerState], updates: int) -> None:
        """Set weights, masters and moments, and the number of updates they have seen.

        A parameter that `states` lacks stays as it is.
        """

    def parameters(self) -> Sequence[LogicalParameter]:
        """The logical parameters of all chunks of this rank."""
