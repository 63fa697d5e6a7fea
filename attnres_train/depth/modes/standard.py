"""The standard residual: h' = h + f(norm(h))."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attnres_train.depth.modes.mode import Initial, Look, Mode

if TYPE_CHECKING:
    from torch import Tensor

    from attnres_train.depth.history import History
    from attnres_train.depth.layout import Reads
    from attnres_train.depth.mix import Norm
    from attnres_train.depth.source import Source


class Standard(Mode):
    """The reader sees the running sum of everything before it; it has no parameters."""

    def parameters(self, reads: Reads, width: int, writes: bool) -> dict[str, Initial]:
        return {}

    def read(self, own: Mapping[str, Tensor], sources: Sequence[Source], norm: Norm) -> Tensor:
        from attnres_train.depth.aggregation import normalise

        (stream,) = sources
        return normalise(stream, norm, backend=self.residual.backend)

    def look(self, own: Mapping[str, Tensor], sources: Sequence[Source]) -> Look:
        (stream,) = sources
        return Look(stream.value.detach().flatten(0, -2))

    def write(
        self, own: Mapping[str, Tensor], history: History, read_TBD: Tensor, output_TBD: Tensor, completes_block: bool
    ) -> History:
        return history.add(output_TBD, completes_block)
