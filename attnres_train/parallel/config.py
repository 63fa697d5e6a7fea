"""The `[parallel]` section: the process grid and how the depth history crosses it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attnres_train.section import section

DeviceWish = Literal["auto", "cpu", "cuda"]


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
    history_cache: Literal["auto", "on", "off"] = "auto"
    """How the depth history crosses stages. `on`: a rank keeps what it has seen, a hop brings what is new to it.
    `off`: every hop brings the whole prefix. `auto`: on where a rank has several stages (`virtual`)."""
    exact_gradients: bool = False
    """With the cache: gradients add up in the order of one process, bit for bit, for the whole prefix on the way
    back."""
    chunk_mib: int | None = Field(default=None, ge=1)
    """Messages between stages are cut into pieces of this size; None sends each source in one."""
    eager: bool | None = None
    """A source leaves as soon as its block is complete, while its stage still computes, and receives are posted
    one message ahead. None: on between CPUs, where it was measured to pay, off between GPUs."""
    offload: bool = False
    """What stages received and the block sums they made wait in host memory between forward and backward."""
    overlap: bool = True
    """With `virtual`: stages compute while messages are under way."""
    micro_batch_group: int | None = Field(default=None, ge=1)
    """With `virtual`: micro-batches that run on one stage before the rank's next has its turn; None means
    `pipeline`."""
    device: DeviceWish = "auto"
    """Where ranks compute. `auto`: on the node's GPUs, or on its CPUs where it has none; GPUs that torch cannot use
    are refused. `cpu`: on CPUs, though there are GPUs. `cuda`: on GPUs, and nowhere else."""
    timeout_seconds: int = Field(default=600, ge=1)
    """A collective that waits longer than this ends the run."""

    @property
    def num_stages(self) -> int:
        return self.pipeline * self.virtual

    @property
    def caches_history(self) -> bool:
        """What `history_cache` comes to; the cache needs layers on all stages but, perhaps, the first and the last."""
        if self.history_cache != "auto":
            return self.history_cache == "on"
        return self.virtual > 1 and 0 not in (self.layers_per_stage or ())[1:-1]

    @property
    def model_ranks(self) -> int:
        """Ranks that hold one replica of the model."""
        return self.tensor * self.pipeline * self.context

    def data(self, world_size: int) -> int:
        """Data-parallel replicas among `world_size` ranks; `attnres check` proves the division exact."""
        return world_size // self.model_ranks
