"""One parameter or buffer of the model, described without torch: everything that others ask of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from attnres_train.model.sharding import Sharding


@dataclass(frozen=True)
class TensorSpec:
    """A logical tensor: what one device would hold, how ranks share it, how it starts and how it is trained."""

    name: str
    """As in the whole model (`layers.17.mlp.norm.weight`), whichever stage holds it."""
    sharding: Sharding
    decays: bool
    """Whether weight decay draws it to zero: maps of the width do, what weighs, scales or gates does not."""
    value: float = 0.0
    """Its initial value is this everywhere, or normal around it with `std`."""
    std: float = 0.0
    fp32: bool = False
    """Under every precision: the parameters of depth readers."""
    per_head: bool = False
    """Whole on every tensor rank, but seen by the rank's own heads alone: gradients are partial sums even without
    sequence parallelism."""
    buffer: bool = False
    """Saved, not trained: a persistent fp32 buffer that its module changes in place, alike on all data ranks."""
    copies: int = 1
    """Stages that hold it: 2 of a tied embedding under a pipeline; both reduce its gradient."""
    owned: bool = True
    """False for the second copy: same name, same values, counted and saved with the first."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Without padding."""
        return self.sharding.shape

    @cached_property
    def size(self) -> int:
        """Elements that all tensor ranks hold of it together, padded rows included."""
        return prod(self.sharding.local_shape(ranks=1))

    @property
    def part(self) -> str:
        """The layer or the table it belongs to: `layers.17`, `embedding`, `head`."""
        first, _, rest = self.name.partition(".")
        return f"{first}.{rest.partition('.')[0]}" if first == "layers" else first

    @property
    def divided(self) -> bool:
        """Over the tensor ranks; else whole on each."""
        return self.sharding.axis is not None

    @property
    def table(self) -> bool:
        """Embedding or output projection: its rows are the vocabulary, and padded."""
        return self.sharding.padded is not None

    def held(self, tensor: int) -> int:
        """Elements on one of `tensor` ranks."""
        return self.size // tensor if self.divided else self.size

    def partial(self, sequence: bool) -> bool:
        """Whether each tensor rank sees only a part of its gradient: whole tensors under sequence parallelism."""
        return not self.divided and (sequence or self.per_head)
