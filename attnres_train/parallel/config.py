"""The `[parallel]` section: the process grid and how the depth history crosses it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attnres_train.section import section


@section
class ParallelConfig:
    tensor: int = Field(default=1, ge=1)
    """Ranks that share every weight matrix."""
    pipeline: int = Field(default=1, ge=1)
    """Ranks that share the layers."""
    virtual: int = Field(default=1, ge=1)
    """Pipeline stages a rank (interleaved schedule); 1 means plain 1F1B."""
    context: int = Field(default=1, ge=1)
    """Ranks that share the sequence in attention."""
    expert: int = Field(default=1, ge=1)
    """Ranks that share the experts."""
    sequence: bool = False
    """Shard activations outside the tensor-parallel layers along the sequence, over the tensor ranks."""
    layers_per_stage: tuple[int, ...] | None = None
    """Layers of each of the `pipeline * virtual` stages, in order; None leaves it to `balance`."""
    balance: Literal["layers", "cost"] = "layers"
    """`layers`: as many layers a stage as can be, larger stages first. `cost`: the dearest stage as cheap as can
    be, the output projection counted; for models whose vocabulary is large beside their layers."""
    history_cache: Literal["auto", "off"] = "auto"
    """How the depth history crosses stages; `off` sends the whole prefix on every hop."""
    timeout_seconds: int = Field(default=600, ge=1)
    """A collective that waits longer than this ends the run."""

    @property
    def num_stages(self) -> int:
        return self.pipeline * self.virtual

    @property
    def model_ranks(self) -> int:
        """Ranks that hold one replica of the model."""
        return self.tensor * self.pipeline * self.context

    def data(self, world_size: int) -> int:
        """Data-parallel replicas among `world_size` ranks; `attnres check` proves the division exact."""
        return world_size // self.model_ranks
