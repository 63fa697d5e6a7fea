"""What a residual mode is: which parameters a reader has, how it reads, how an output is written.

Modes are plain objects without state; nothing here imports torch, so that parameters can be counted without it.

Legend: T tokens, B batch, D width; N tokens of all samples, S sources.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from attnres_train.depth.config import ResidualConfig
    from attnres_train.depth.history import History
    from attnres_train.depth.layout import Reads
    from attnres_train.depth.mix import Norm
    from attnres_train.depth.source import Source


Blocks = Literal["none", "of one", "of a size"]
"""Sublayers whose outputs make a source: `none` makes no sources, the residual is one running value."""


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


class Mode(ABC):
    """One residual mode. Parameters are fp32 whatever the model's dtype, and whole on every rank."""

    blocks: ClassVar[Blocks] = "none"
    keys: ClassVar[tuple[str, ...]] = ()
    """Of `[residual]`, that it has beside `mode`, `backend` and, with blocks of a size, `block_size`."""
    products: ClassVar[int] = 0
    """Multiply-adds of every value that a reader reads: one for its score, one for its weighted term. Sums are none."""
    takes_backend: ClassVar[bool] = True
    """Whether `residual.backend` chooses what reads; else that is plain torch."""
    has_kernel: ClassVar[bool] = True
    """Whether a kernel does all of its work, where there is one; else plain torch does some, in several passes."""

    def __init__(self, residual: ResidualConfig, eps: float):
        self.residual, self.eps = residual, eps

    @classmethod
    def of(cls, residual: ResidualConfig, eps: float) -> Mode:
        """That of a checked section; `eps` is that of the norms."""
        return cls(residual, eps)

    @abstractmethod
    def parameters(self, reads: Reads, width: int, writes: bool) -> dict[str, Initial]:
        """Those of one reader; `writes` is False for the head, which adds nothing to the history."""

    def start_share(self, reads: Reads) -> float:
        """The weight that every source of a reader has before its parameters are trained: 1 makes the read a sum."""
        return 1.0

    @abstractmethod
    def read(self, own: Mapping[str, Tensor], sources: Sequence[Source], norm: Norm) -> Tensor:
        """The normalised input of a branch, `[T, B, D]`, from what the reader sees."""

    @abstractmethod
    def look(self, own: Mapping[str, Tensor], sources: Sequence[Source]) -> Look:
        """What `read` makes of the same sources, for diagnostics."""

    @abstractmethod
    def write(
        self, own: Mapping[str, Tensor], history: History, read_TBD: Tensor, output_TBD: Tensor, completes_block: bool
    ) -> History:
        """The history after the branch turned `read_TBD` into `output_TBD`."""
