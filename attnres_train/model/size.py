"""Parameters and FLOPs of the transformer, as plain arithmetic (no torch)."""

from __future__ import annotations

from dataclasses import dataclass

from attnres_train.model.config import ModelConfig


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one transformer layer, by part."""

    attention: int
    mlp: int
    norms: int
    depth: int

    @property
    def matrices(self) -> int:
        """Those that take part in a matrix product for every token."""
        return self.attention + self.mlp

    @property
    def total(self) -> int:
        return self.attention + self.mlp + self.norms + self.depth


def layer_parameters(model: ModelConfig, *, depth_attention: bool) -> LayerParameters:
    """Parameters of one layer: no biases, SwiGLU, two norms, and a (query, key gain) pair a sublayer."""
    key_value = model.query_groups * model.head_size
    attention = model.hidden_size * (2 * model.hidden_size + 2 * key_value)
    qk_norm = 2 * model.head_size if model.qk_norm else 0
    return LayerParameters(
        attention=attention,
        mlp=3 * model.hidden_size * model.ffn_hidden_size,
        norms=2 * model.hidden_size + qk_norm,
        depth=2 * 2 * model.hidden_size if depth_attention else 0,
    )


def embedding_parameters(model: ModelConfig, padded_vocabulary: int) -> int:
    """Parameters of the token embedding, padded rows included."""
    return padded_vocabulary * model.hidden_size


def head_parameters(model: ModelConfig, padded_vocabulary: int, *, depth_attention: bool) -> int:
    """Parameters that only the head has: final norm, final (query, key gain), output projection if untied."""
    projection = 0 if model.tie_embeddings else padded_vocabulary * model.hidden_size
    return model.hidden_size + (2 * model.hidden_size if depth_attention else 0) + projection


def total_parameters(model: ModelConfig, padded_vocabulary: int, *, depth_attention: bool) -> int:
    """Parameters of the whole model, each counted once however many ranks hold it."""
    layers = model.num_layers * layer_parameters(model, depth_attention=depth_attention).total
    head = head_parameters(model, padded_vocabulary, depth_attention=depth_attention)
    return embedding_parameters(model, padded_vocabulary) + layers + head


def layer_forward_flops(model: ModelConfig, sequence_length: int) -> float:
    """Forward FLOPs of one layer for one token: 2 a matrix parameter, and causal attention over half the sequence.

    Attention scores and their weighted sum are 2 * D multiply-adds a visible position, `sequence_length / 2`
    positions on average.
    """
    matrices = layer_parameters(model, depth_attention=False).matrices
    return 2 * matrices + 2 * model.hidden_size * sequence_length


def head_forward_flops(model: ModelConfig, padded_vocabulary: int) -> float:
    """Forward FLOPs of the output projection for one token."""
    return 2 * padded_vocabulary * model.hidden_size


def training_flops_per_token(model: ModelConfig, padded_vocabulary: int, sequence_length: int) -> float:
    """FLOPs of forward and backward for one token: three times the forward ones.

    Norms, softmax and the depth aggregation are left out, as is usual for model FLOPs; the aggregation moves
    bytes rather than computes.
    """
    layers = model.num_layers * layer_forward_flops(model, sequence_length)
    return 3 * (layers + head_forward_flops(model, padded_vocabulary))
