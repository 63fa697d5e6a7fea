"""From the `[residual]` section to the mode."""

from __future__ import annotations

from attnres_train.depth.config import ResidualConfig
from attnres_train.depth.modes.attention import DepthAttention
from attnres_train.depth.modes.denseformer import DenseFormer
from attnres_train.depth.modes.gated import Gated
from attnres_train.depth.modes.mode import Mode
from attnres_train.depth.modes.options import AttentionWithOptions
from attnres_train.depth.modes.standard import Standard


def mode_of(residual: ResidualConfig, eps: float) -> Mode:
    """The mode of a checked configuration; `eps` is that of the norms."""
    match residual.mode:
        case "standard":
            return Standard(residual.backend)
        case "gated":
            return Gated(residual.backend, residual.gate, residual.gate_bias)
        case "denseformer":
            return DenseFormer(residual.backend)
        case "full" | "block":
            options = residual.changes_attention
            return AttentionWithOptions(residual, eps) if options else DepthAttention(residual.backend, eps)
