"""How one logical tensor is cut over tensor ranks: pure index arithmetic, and its use on tensors.

A *logical* tensor is what one device would hold. A rank holds, along one axis, the same piece of each of
`blocks` equal parts: one part for most matrices, two for the stacked gate and up projections of SwiGLU, so
that every rank has matching columns of both. The embedding is padded before it is cut; padded rows are not
part of the logical tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """Rows `local` of a rank's tensor are rows `logical` of the logical one (along the cut axis)."""

    local: slice
    logical: slice


@dataclass(frozen=True)
class Sharding:
    """`axis` is None for tensors that every rank holds whole; `padded` is the cut axis's length on all ranks."""

    shape: tuple[int, ...]
    axis: int | None = None
    blocks: int = 1
    padded: int | None = None

    def local_shape(self, ranks: int) -> tuple[int, ...]:
        """Shape of one rank's tensor."""
        if self.axis is None:
            return self.shape
        length = self.padded if self.padded is not None else self.shape[self.axis]
        return (*self.shape[: self.axis], length // ranks, *self.shape[self.axis + 1 :])

    def pieces(self, rank: int, ranks: int) -> tuple[Piece, ...]:
        """Which logical rows `rank` holds, and where; padded rows are in no piece, empty pieces are left out."""
        if self.axis is None:
            return (Piece(slice(None), slice(None)),)
        logical_length = self.shape[self.axis]
        block = (self.padded if self.padded is not None else logical_length) // self.blocks
        part = block // ranks
        pieces = []
        for index in range(self.blocks):
            start = index * block + rank * part
            stop = min(start + part, logical_length)
            if stop > start:
                pieces.append(Piece(slice(index * part, index * part + stop - start), slice(start, stop)))
        return tuple(pieces)

    def cut(self, logical: Tensor, rank: int, ranks: int) -> Tensor:
        """The tensor of `rank`, made from the logical one; padded rows are zero."""
        if self.axis is None:
            return logical.clone()
        local = logical.new_zeros(self.local_shape(ranks))
        for piece in self.pieces(rank, ranks):
            index = (slice(None),) * self.axis
            local[(*index, piece.local)] = logical[(*index, piece.logical)]
        return local
