"""The `[residual]` section: what each sublayer reads from the depth."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attnres_train.section import changed, section

ResidualMode = Literal["standard", "gated", "denseformer", "full", "block"]
Backend = Literal["auto", "reference", "lean", "native", "triton"]
ATTENTION_OPTIONS = ("query", "weights", "heads", "key_rank", "key_norm", "temperature", "entropy_weight")
"""Keys that ask for another attention over depth than the published one."""


@section
class ResidualConfig:
    mode: ResidualMode = "block"
    """`standard`: the fixed sum. `gated`: each branch enters through a gate. `denseformer`: static weights over
    every earlier output. `full`: attention over every earlier output. `block`: attention over block sums."""
    block_size: int | None = Field(default=None, ge=1)
    """Sublayers a block (attention and MLP each count one); for `block` only."""
    backend: Backend = "auto"
    """Implementation of the aggregation; all keep one contract. `attnres inspect CONFIG` says what `auto` picks."""
    window: int | None = Field(default=None, ge=1)
    """Read only the last so many complete sources, and the embedding, and the partial."""
    query: Literal["learned", "input"] = "learned"
    """`learned`: one vector a sublayer. `input`: a projection of the newest source, matched with projected keys."""
    weights: Literal["softmax", "sigmoid", "static"] = "softmax"
    """How scores become weights; `static`: softmax of learned numbers, the same for every token."""
    heads: int = Field(default=1, ge=1)
    """Heads over depth: each part of the width has its own weights."""
    key_rank: int | None = Field(default=None, ge=1)
    """Project keys to this width before they meet the query; None leaves them as they are (`input`: full width)."""
    key_norm: bool = True
    """RMSNorm of the keys; without it large sources attract weight by their size."""
    temperature: float = Field(default=1.0, gt=0)
    """Scores are divided by this."""
    entropy_weight: float = 0.0
    """Adds this times the entropy of every reader's weights, averaged over tokens, to what is minimised: above zero
    sharpens the weights, below zero spreads them. The logged loss is without it."""
    norm_of: Literal["mix", "sum"] = "mix"
    """What the norm behind a read adds `model.norm_eps` to: the mean square of the `mix`, or that of the `sum` of all
    sources, of which the mix starts as a part (a mean): then a model with queries at zero computes exactly what the
    standard residual does, as a pretrained one that is imported must."""
    gate: Literal["branch", "highway"] = "branch"
    """For `gated`: `branch` is h + g f(x), `highway` is (1 - g) h + g f(x)."""
    gate_bias: float | None = None
    """Initial bias of the gate; None means 4 for `branch` (g = 0.98, near the standard residual), 0 for `highway`
    (there equal shares, which behind a norm is the sum)."""

    @property
    def changes_attention(self) -> bool:
        """Whether an option asks for another attention over depth than the published one."""
        return not changed(self).keys().isdisjoint(ATTENTION_OPTIONS)
