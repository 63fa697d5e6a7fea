"""The configuration of a decoder transformer with attention over depth, and what each of its sublayers reads.

Part of an exported model: it imports transformers and nothing else.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig


class AttnResConfig(PreTrainedConfig):
    """Names and meanings are those of Llama's configuration; beside them `qk_norm` and `residual`.

    `attention_windows` has for each layer how many tokens attention sees, itself included, None for all. Positions
    that are scaled turn by `rope_inverse_frequencies`, radians a token, and cosines and sines are multiplied by
    `rope_attention_factor`: as trained, however transformers would compute them.

    `residual` has `mode` (`standard`, `gated`, `denseformer`, `full` or `block`), `block_size` (sublayers a block, for
    `block`), `window`, `query`, `weights`, `heads`, `key_rank`, `key_norm`, `temperature`, `norm_of` and `gate`.
    """

    model_type = "attnres"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]

    def __init__(
        self,
        vocab_size: int = 32000,
        hidden_size: int = 768,
        intermediate_size: int = 2048,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        max_position_embeddings: int = 2048,
        rms_norm_eps: float = 1e-5,
        rope_theta: float = 10_000.0,
        initializer_range: float = 0.02,
        qk_norm: bool = False,
        qkv_bias: bool = False,
        attention_output_bias: bool = False,
        attention_windows: list[int | None] | None = None,
        rope_inverse_frequencies: list[float] | None = None,
        rope_attention_factor: float = 1.0,
        residual: dict[str, Any] | None = None,
        tie_word_embeddings: bool = False,
        use_cache: bool = True,
        **others: Any,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.head_dim = head_dim or hidden_size // num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        self.rms_norm_eps = rms_norm_eps
        self.rope_theta = rope_theta
        self.initializer_range = initializer_range
        self.qk_norm = qk_norm
        self.qkv_bias = qkv_bias
        self.attention_output_bias = attention_output_bias
        self.attention_windows = attention_windows
        self.rope_inverse_frequencies = rope_inverse_frequencies
        self.rope_attention_factor = rope_attention_factor
        self.residual = {**_DEFAULTS, **(residual or {})}
        self.use_cache = use_cache
        super().__init__(tie_word_embeddings=tie_word_embeddings, **others)

    @property
    def sublayers(self) -> int:
        """Two a layer: attention, then MLP. Reader number `sublayers` is the head."""
        return 2 * self.num_hidden_layers

    def sees(self, layer: int) -> int | None:
        """How many tokens attention of `layer` sees, itself included; None is all before it."""
        return None if self.attention_windows is None else self.attention_windows[layer]

    def reads(self, reader: int) -> tuple[tuple[int, ...], bool]:
        """Which sources reader number `reader` sees, oldest first, and whether the sum of an incomplete block too.

        Source 0 is the embedding, source n the sum of the outputs of block n. Modes without sources have one running
        value instead. A window only moves on: what a reader does not see, no later one does.
        """
        size = self._block_size
        if size is None:
            return (), True
        complete, window = 1 + reader // size, self.residual["window"]
        first = 1 if window is None else max(1, complete - window)
        return (0, *range(first, complete)), reader % size != 0

    def completes(self, sublayer: int) -> int | None:
        """The number of the source that the output of `sublayer` completes, if it does."""
        size = self._block_size
        return None if size is None or (sublayer + 1) % size else (sublayer + 1) // size

    @property
    def _block_size(self) -> int | None:
        mode = self.residual["mode"]
        if mode in ("standard", "gated"):
            return None
        return 1 if mode in ("full", "denseformer") else int(self.residual["block_size"])


_DEFAULTS = {
    "mode": "standard",
    "block_size": None,
    "window": None,
    "query": "learned",
    "weights": "softmax",
    "heads": 1,
    "key_rank": None,
    "key_norm": True,
    "temperature": 1.0,
    "norm_of": "mix",
    "gate": "branch",
}
