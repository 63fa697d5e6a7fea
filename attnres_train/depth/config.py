"""The `[residual]` section: what each sublayer reads from the depth."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attnres_train.section import section

ResidualMode = Literal["standard", "full", "block"]


@section
class ResidualConfig:
    mode: ResidualMode = "block"
    """`standard`: the fixed sum. `full`: attention over every earlier output. `block`: over block sums."""
    block_size: int | None = Field(default=None, ge=1)
    """Sublayers a block (attention and MLP each count one); for `block` only."""
    backend: Literal["auto", "reference", "lean"] = "auto"
    """Implementation of the aggregation; all keep one contract."""
