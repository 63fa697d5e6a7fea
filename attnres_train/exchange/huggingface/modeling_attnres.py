"""A decoder transformer with attention over depth, in plain torch (Attention Residuals, arXiv 2603.15031).

Every sublayer, and the head, reads a mix of what sublayers before it put out (`depth_attnres.py`), normalises it and
puts out something itself. What has been put out so far is the *history*: a list of `[batch, tokens, width]` tensors,
just those that the next reader sees, oldest first. Depth looks at one token at a time: the cache of keys and values is
that of any transformer.

Part of an exported model: it imports torch, transformers and the two files beside it, nothing else.

Shapes: B batch, T tokens, D width, H query heads, G key/value heads, K head width, S sources, N heads over depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_attnres import AttnResConfig
from .depth_attnres import DepthReader, RMSNorm

CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""What this version of transformers calls the keys and values of earlier tokens."""


@dataclass
class AttnResOutput(CausalLMOutputWithPast):
    depth_weights: tuple[Tensor, ...] | None = None
    """Of every sublayer and the head, `[B, N, T, S]`, if asked for: of each source that it reads, oldest first."""


class Attention(nn.Module):
    """Grouped-query attention with rotary positions, and RMSNorm on queries and keys with `qk_norm`."""

    def __init__(self, config: AttnResConfig, layer: int):
        super().__init__()
        self.config, self.layer, width = config, layer, config.head_dim
        queries, keys = config.num_attention_heads * width, config.num_key_value_heads * width
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=config.attention_output_bias)
        self.q_norm = RMSNorm(width, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(width, config.rms_norm_eps) if config.qk_norm else nn.Identity()

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any) -> Tensor:
        heads = (*x.shape[:-1], -1, self.config.head_dim)
        query_BHTK = rotate(self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2), rotary)
        key_BGTK = rotate(self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2), rotary)
        value_BGTK = self.v_proj(x).view(heads).transpose(1, 2)
        if cache is not None:
            key_BGTK, value_BGTK = cache.update(key_BGTK, value_BGTK, self.layer)
        attend = eager if self.config._attn_implementation == "eager" else sdpa
        return self.o_proj(attend(query_BHTK, key_BGTK, value_BGTK, mask).transpose(1, 2).flatten(2))


def sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """`[B, H, T, K]`. Without a mask all see all before them: a whole window, or one token that is the last."""
    grouped, causal = query.shape[1] != key.shape[1], mask is None and query.shape[2] > 1
    return F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, enable_gqa=grouped)


def eager(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """The same, written out."""
    key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value))
    scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(key.shape[2] - query.shape[2])
    return scores.masked_fill(~mask, float("-inf")).softmax(-1, dtype=torch.float32).to(value.dtype) @ value


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turns pairs of entry i and entry i + K/2 of `[B, heads, T, K]`."""
    first, second = x.chunk(2, -1)
    return x * rotary[0] + torch.cat((-second, first), -1) * rotary[1]


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: AttnResConfig, layer: int):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class AttnResLayer(GradientCheckpointingLayer):
    """An attention and an MLP. Another kind of either (latent or linear attention, experts) goes in here, by layer."""

    def __init__(self, config: AttnResConfig, layer: int):
        super().__init__()
        self.attention_depth, self.mlp_depth = DepthReader(config, 2 * layer), DepthReader(config, 2 * layer + 1)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn, self.mlp = Attention(config, layer), MLP(config, layer)

    def forward(
        self, *history: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any = None
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """The history after both sublayers, and the weights of their readers."""
        read, first = self.attention_depth(list(history), self.input_layernorm)
        between = self.attention_depth.write(list(history), read, self.self_attn(read, rotary, mask, cache))
        read, second = self.mlp_depth(between, self.post_attention_layernorm)
        return self.mlp_depth.write(between, read, self.mlp(read)), [first, second]


class AttnResPreTrainedModel(PreTrainedModel):
    config_class = AttnResConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["AttnResLayer"]
    # As in training, whatever the dtype of the rest.
    _keep_in_fp32_modules_strict = ["attention_depth", "mlp_depth", "head_depth"]

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, DepthReader):
            module.reset()


class AttnResModel(AttnResPreTrainedModel):
    """Tokens to what the output projection reads."""

    def __init__(self, config: AttnResConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(AttnResLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.head_depth = DepthReader(config, config.sublayers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache: Any = None,
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The normalised mix that the head reads, `[B, T, D]`, and the weights of every reader `[S, B, T, N]`."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        past, tokens = (0 if cache is None else int(cache.get_seq_length())), embedded.shape[1]
        if position_ids is None:
            position_ids = torch.arange(past, past + tokens, device=embedded.device)[None]
        rotary = angles(self.config, position_ids, embedded.dtype)
        windows = {self.config.sees(layer) for layer in range(self.config.num_hidden_layers)}
        masks = {window: seen(attention_mask, past, tokens, embedded.device, window) for window in windows}
        history, weights = [embedded], []
        for number, layer in enumerate(self.layers):
            mask = masks[self.config.sees(number)]
            history, both = layer(*history, rotary=rotary, mask=mask, cache=cache)
            weights += both
        mixed, last = self.head_depth(history, self.norm)
        return mixed, [*weights, last]


def angles(config: AttnResConfig, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position, `[B, 1, T, K]`. Made anew, so that there is no buffer to be lost."""
    positions, factor = position_ids[:, None, :, None].float(), config.rope_attention_factor
    if config.rope_inverse_frequencies is None:
        steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=position_ids.device)
        angle = positions / config.rope_theta ** (steps / config.head_dim)
    else:
        angle = positions * torch.tensor(config.rope_inverse_frequencies, device=position_ids.device)
    angle = torch.cat((angle, angle), -1)
    return (angle.cos() * factor).to(dtype), (angle.sin() * factor).to(dtype)


def seen(
    attention_mask: Tensor | None, past: int, tokens: int, device: torch.device, window: int | None
) -> Tensor | None:
    """Which keys each query sees, `[B, 1, T, past + T]`; None where the kernel's own causality says it.

    `window` counts the tokens that a query sees, itself included; None is all before it.
    A query of padding, which would see nothing, sees itself, so that nothing becomes NaN.
    """
    if attention_mask is not None and attention_mask.dim() == 4:
        return attention_mask if attention_mask.dtype == torch.bool else attention_mask >= 0
    padded = attention_mask is not None and not bool(attention_mask.all())
    if window is not None and window >= past + tokens:
        window = None
    if not padded and window is None and (past == 0 or tokens == 1):
        return None
    places = torch.arange(past + tokens, device=device)
    causal, itself = places <= places[past:, None], places == places[past:, None]
    if window is not None:
        causal = causal & (places > places[past:, None] - window)
    if attention_mask is None or not padded:
        return causal[None, None]
    real = attention_mask[:, None, None, -(past + tokens) :].bool()
    return causal & real | itself


class AttnResForCausalLM(AttnResPreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: AttnResConfig):
        super().__init__(config)
        self.model = AttnResModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_depth_weights: bool = False,
        **loss_options: Any,
    ) -> AttnResOutput:
        """`cache` (once called `past_key_values`) holds earlier tokens, which `attention_mask` counts too."""
        cache = past_key_values if cache is None else cache
        wanted = self.config.use_cache if use_cache is None else use_cache
        if self.model.gradient_checkpointing and self.training and torch.is_grad_enabled():
            wanted, cache = False, None
        if wanted and cache is None:
            cache = DynamicCache(config=self.config)
        mixed, weights = self.model(input_ids, attention_mask, position_ids, inputs_embeds, cache)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(mixed[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **loss_options)
        asked = _shown(weights, mixed.shape[:2]) if output_depth_weights else None
        return AttnResOutput(loss=loss, logits=logits, depth_weights=asked, **{CACHE: cache if wanted else None})


def _shown(weights: list[Tensor | None], tokens: torch.Size) -> tuple[Tensor, ...]:
    """`[B, N, T, S]` of each reader that weighs."""
    every = [weight for weight in weights if weight is not None]
    return tuple(each.expand(-1, *tokens, -1).permute(1, 3, 2, 0) for each in every)
