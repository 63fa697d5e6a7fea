"""Gated residuals: one scalar gate a token and sublayer, g = sigmoid(w . x + b), x the branch's normalised input.

    branch    h' = h + g f(x)               b = 4 at first: g = 0.98, near the standard residual
    highway   h' = (1 - g) h + g f(x)       Highway Networks, arXiv 1505.00387, with one gate for the whole width;
                                            b = 0 at first: (h + f) / 2, behind a norm the sum with fading memory

w starts at zero, so every token starts with the same gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnres_train.depth.modes.mode import Initial
from attnres_train.depth.modes.standard import Standard

if TYPE_CHECKING:
    from torch import Tensor

    from attnres_train.depth.history import History
    from attnres_train.depth.layout import Reads

INITIAL_BIAS = {"branch": 4.0, "highway": 0.0}


class Gated(Standard):
    """Reads as the standard residual does; the gate decides how the output enters."""

    keys = ("gate", "gate_bias")
    has_kernel = False

    def parameters(self, reads: Reads, width: int, writes: bool) -> dict[str, Initial]:
        stated = self.residual.gate_bias
        bias = INITIAL_BIAS[self.residual.gate] if stated is None else stated
        return {"gate": Initial((width,), 0.0), "gate_bias": Initial((1,), bias)} if writes else {}

    def write(
        self, own: Mapping[str, Tensor], history: History, read_TBD: Tensor, output_TBD: Tensor, completes_block: bool
    ) -> History:
        assert history.partial is not None, "a gated residual always has a running value"
        compute = own["gate"].dtype
        gate_TB1 = ((read_TBD.to(compute) @ own["gate"]).unsqueeze(-1) + own["gate_bias"]).sigmoid()
        stream_TBD = history.partial.tap()
        kept_TBD = (1 - gate_TB1) * stream_TBD if self.residual.gate == "highway" else stream_TBD
        return history.replace((kept_TBD + gate_TB1 * output_TBD).to(output_TBD.dtype))
