"""What a residual mode is: which parameters a reader has, how it reads, how an output is written.

Modes are plain objects without state; nothing here imports torch, so that parameters can be counted without it.

Legend: T tokens, B batch, D width; N tokens of all samples, S sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from attnres_train.depth.history import History
    from attnres_train.depth.layout import Reads
    from attnres_train.depth.mix import Norm
    from attnres_train.depth.source import Source


class Initial(NamedTuple):
    """Shape and initial value of a parameter: constant, and normal with `std` around it if that is not zero."""

    shape: tuple[int, ...]
    value: float
    std: float = 0.0
    decays: bool = False
    """Whether weight decay draws it to zero: maps of the width do, what weighs, scales or gates does not."""


class Look(NamedTuple):
    """What one reader makes of its sources, for diagnostics; not part of the graph."""

    mix_ND: Tensor
    """What it reads, before the norm of the branch."""
    weights_SN: Tensor | None = None
    """The weight of every source, a mean over heads; None where nothing is weighed."""
    entropy_N: Tensor | None = None
    """Of the weights, in nats, a mean over heads; None where they are no shares of one."""


class Mode(Protocol):
    """One residual mode. Parameters are fp32 whatever the model's dtype, and whole on every rank."""

    products: int
    """Multiply-adds of every value that a reader reads: one for its score, one for its weighted term. Sums are none."""
    has_kernel: bool
    """Whether the backends of the aggregation serve it; else it runs in plain torch alone."""

    def parameters(self, reads: Reads, width: int, writes: bool) -> dict[str, Initial]:
        """Those of one reader; `writes` is False for the head, which adds nothing to the history."""
        ...

    def read(self, own: Mapping[str, Tensor], sources: Sequence[Source], norm: Norm) -> Tensor:
        """The normalised input of a branch, `[T, B, D]`, from what the reader sees."""
        ...

    def look(self, own: Mapping[str, Tensor], sources: Sequence[Source]) -> Look:
        """What `read` makes of the same sources, for diagnostics."""
        ...

    def write(
        self, own: Mapping[str, Tensor], history: History, read_TBD: Tensor, output_TBD: Tensor, completes_block: bool
    ) -> History:
        """The history after the branch turned `read_TBD` into `output_TBD`."""
        ...
