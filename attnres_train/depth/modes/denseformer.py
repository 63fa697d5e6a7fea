"""DenseFormer: h = sum_j c_j v_j with one learned number c_j a reader and source, the same for every token.

After arXiv 2402.02622, whose depth-weighted average runs over the running sums after each layer; here it runs
over the outputs of every sublayer, which spans the same combinations. c starts at one: the standard residual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attnres_train.depth.modes.mode import Initial, Look
from attnres_train.depth.modes.standard import Standard

if TYPE_CHECKING:
    from torch import Tensor

    from attnres_train.depth.layout import Reads
    from attnres_train.depth.mix import Norm
    from attnres_train.depth.source import Source


class DenseFormer(Standard):
    blocks = "of one"
    keys = ("window",)
    products = 1
    takes_backend = False
    has_kernel = False

    def parameters(self, reads: Reads, width: int, writes: bool) -> dict[str, Initial]:
        return {"coefficients": Initial((reads.count,), 1.0)}

    def read(self, own: Mapping[str, Tensor], sources: Sequence[Source], norm: Norm) -> Tensor:
        from attnres_train.depth.aggregation import rms_norm, weighted_sum

        coefficients = own["coefficients"]
        values = [source.tap().to(coefficients.dtype) for source in sources]
        return rms_norm(weighted_sum(values, coefficients), norm).to(sources[0].value.dtype)

    def look(self, own: Mapping[str, Tensor], sources: Sequence[Source]) -> Look:
        """The weights are the coefficients, which are no shares: they need not be positive nor add up to one."""
        from attnres_train.depth.aggregation import weighted_sum

        coefficients_S = own["coefficients"].detach()
        values = [source.value.detach().flatten(0, -2).to(coefficients_S.dtype) for source in sources]
        weights_SN = coefficients_S.unsqueeze(-1).expand(-1, values[0].shape[0])
        return Look(weighted_sum(values, coefficients_S), weights_SN)
