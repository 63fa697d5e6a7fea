"""From the `[residual]` section to the mode."""

from __future__ import annotations

from collections.abc import Mapping

from attnres_train.depth.config import ResidualConfig, ResidualMode
from attnres_train.depth.modes.attention import BlockAttention, FullAttention
from attnres_train.depth.modes.denseformer import DenseFormer
from attnres_train.depth.modes.gated import Gated
from attnres_train.depth.modes.mode import Mode
from attnres_train.depth.modes.standard import Standard

MODES: Mapping[ResidualMode, type[Mode]] = {
    "full": FullAttention,
    "block": BlockAttention,
    "denseformer": DenseFormer,
    "gated": Gated,
    "standard": Standard,
}


def mode_of(residual: ResidualConfig, eps: float) -> Mode:
    """The mode of a checked configuration; `eps` is that of the norms."""
    return MODES[residual.mode].of(residual, eps)
