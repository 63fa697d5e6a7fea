"""The `[model]` section: sizes of the transformer, in megatron-core's words."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from pydantic import Field

from attnres_train.section import section


@section
class RopeScaling:
    """How rotary positions are stretched, as transformers' modeling_rope_utils does it."""

    kind: Literal["none", "linear", "llama3", "yarn"] = "none"
    """`linear`: all wavelengths times `factor`. `llama3`: the long ones only. `yarn`: the same by a ramp (arXiv
    2309.00071), with sharper attention."""
    factor: float | None = Field(default=None, ge=1)
    """By how much the window grew."""
    original_window_tokens: int | None = Field(default=None, ge=1)
    """The window that the model was trained with before; for `llama3` and `yarn`."""
    low_freq_factor: float | None = Field(default=None, gt=0)
    """For `llama3`: wavelengths above the original window over this are stretched whole."""
    high_freq_factor: float | None = Field(default=None, gt=0)
    """For `llama3`: wavelengths below the original window over this are left as they are."""
    beta_fast: float = Field(default=32.0, gt=0)
    """For `yarn`: wavelengths that turn more often than this in the original window are left as they are."""
    beta_slow: float = Field(default=1.0, gt=0)
    """For `yarn`: wavelengths that turn less often than this are stretched whole."""
    attention_factor: float | None = Field(default=None, gt=0)
    """For `yarn`: cosines and sines times this; None means 0.1 ln(factor) + 1."""
    truncate: bool = True
    """For `yarn`: whether the ends of the ramp are rounded to whole entries of a head."""


@section
class ModelConfig:
    num_layers: int = Field(ge=1)
    """Transformer layers; each is two sublayers, attention and MLP."""
    hidden_size: int = Field(ge=1)
    """Width D of the residual stream and of every depth source."""
    ffn_hidden_size: int = Field(ge=1)
    """Inner width of the SwiGLU MLP."""
    num_attention_heads: int = Field(ge=1)
    """Query heads, each `head_dim` wide."""
    head_dim: int | None = Field(default=None, ge=2)
    """Width of a head; None means `hidden_size / num_attention_heads`."""
    num_query_groups: int | None = Field(default=None, ge=1)
    """Key/value heads (grouped-query attention); None means one for every attention head."""
    tie_embeddings: bool = False
    """Use the token embedding as the output projection."""
    qk_norm: bool = False
    """RMSNorm on every head's query and key."""
    qkv_bias: bool = False
    """Biases on queries, keys and values."""
    attention_output_bias: bool = False
    """A bias on what attention puts out."""
    sliding_window: int | None = Field(default=None, ge=1)
    """Tokens that attention sees, the token itself included; None is all before it."""
    sliding_layers: tuple[int, ...] | None = None
    """Layers that see `sliding_window` tokens alone, counted from 0; None means every layer."""
    norm_eps: float = Field(default=1e-5, ge=0)
    """Added to the mean square in every RMSNorm, those of the depth keys included."""
    rope_base: int = Field(default=10_000, ge=1)
    """Base of the wavelengths of the rotary position embedding."""
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    init_std: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights; projections back into the residual use it over sqrt(2 num_layers)."""
    vocabulary_rows: int | None = Field(default=None, ge=1)
    """Rows of the embedding before padding, where a model that is imported has more than its tokenizer has entries;
    None means one for every entry."""
    pad_vocabulary_to: int = Field(default=128, ge=1)
    """The vocabulary is padded to a multiple of this times the tensor degree; padded rows are never targets."""

    @property
    def query_groups(self) -> int:
        return self.num_query_groups or self.num_attention_heads

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def sees(self, layer: int) -> int | None:
        """How many tokens attention of transformer layer `layer` (from 0) sees, itself included; None is all."""
        slides = self.sliding_layers is None or layer in self.sliding_layers
        return self.sliding_window if slides else None

    @property
    def num_sublayers(self) -> int:
        return 2 * self.num_layers

    def padded_vocabulary(self, vocabulary_size: int, tensor: int) -> int:
        """Rows of the embedding: `vocabulary_size` rounded up to a multiple of `pad_vocabulary_to * tensor`."""
        unit = self.pad_vocabulary_to * tensor
        return -(-vocabulary_size // unit) * unit
