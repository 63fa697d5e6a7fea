"""The `[model]` section: sizes of the transformer, in megatron-core's words."""

from __future__ import annotations

from pydantic import Field

from attnres_train.section import section


@section
class ModelConfig:
    num_layers: int = Field(ge=1)
    """Transformer layers; each is two sublayers, attention and MLP."""
    hidden_size: int = Field(ge=1)
    """Width D of the residual stream and of every depth source."""
    ffn_hidden_size: int = Field(ge=1)
    """Inner width of the SwiGLU MLP."""
    num_attention_heads: int = Field(ge=1)
    """Query heads, each `hidden_size / num_attention_heads` wide."""
    num_query_groups: int | None = Field(default=None, ge=1)
    """Key/value heads (grouped-query attention); None means one for every attention head."""
    tie_embeddings: bool = False
    """Use the token embedding as the output projection."""
    qk_norm: bool = False
    """RMSNorm on every head's query and key."""
    norm_eps: float = Field(default=1e-5, ge=0)
    """Added to the mean square in every RMSNorm, those of the depth keys included."""
    rope_base: int = Field(default=10_000, ge=1)
    """Base of the wavelengths of the rotary position embedding."""
    init_std: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights; projections back into the residual use it over sqrt(2 num_layers)."""
    vocabulary_size: int | None = Field(default=None, ge=1)
    """Rows of the embedding before padding, where a model that is imported has more than its tokenizer has entries;
    None means one for every entry."""
    pad_vocabulary_to: int = Field(default=128, ge=1)
    """The vocabulary is padded to a multiple of this times the tensor degree; padded rows are never targets."""

    @property
    def query_groups(self) -> int:
        return self.num_query_groups or self.num_attention_heads

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def num_sublayers(self) -> int:
        return 2 * self.num_layers

    def padded_vocabulary(self, vocabulary_size: int, tensor: int) -> int:
        """Rows of the embedding: `vocabulary_size` rounded up to a multiple of `pad_vocabulary_to * tensor`."""
        unit = self.pad_vocabulary_to * tensor
        return -(-vocabulary_size // unit) * unit
