"""Parameters and FLOPs of the transformer, as plain arithmetic (no torch)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from attnres_train.depth.config import ResidualConfig
from attnres_train.depth.layout import DepthLayout
from attnres_train.depth.modes.choose import mode_of
from attnres_train.model.config import ModelConfig


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one transformer layer, by part."""

    attention: int
    mlp: int
    norms: int

    @property
    def matrices(self) -> int:
        """Those that take part in a matrix product for every token."""
        return self.attention + self.mlp

    @property
    def total(self) -> int:
        return self.attention + self.mlp + self.norms


def layer_parameters(model: ModelConfig) -> LayerParameters:
    """Parameters of one layer, its depth readers left out: no biases, SwiGLU, two norms."""
    key_value = model.query_groups * model.head_size
    attention = model.hidden_size * (2 * model.hidden_size + 2 * key_value)
    qk_norm = 2 * model.head_size if model.qk_norm else 0
    return LayerParameters(
        attention=attention,
        mlp=3 * model.hidden_size * model.ffn_hidden_size,
        norms=2 * model.hidden_size + qk_norm,
    )


def embedding_parameters(model: ModelConfig, padded_vocabulary: int) -> int:
    """Parameters of the token embedding, padded rows included."""
    return padded_vocabulary * model.hidden_size


def head_parameters(model: ModelConfig, padded_vocabulary: int) -> int:
    """Parameters that only the head has, its depth reader left out: final norm, output projection if untied."""
    return model.hidden_size + (0 if model.tie_embeddings else padded_vocabulary * model.hidden_size)


def reader_parameters(model: ModelConfig, residual: ResidualConfig, reader: int) -> int:
    """Parameters of depth reader number `reader`: a sublayer's, or the head's at `num_sublayers`."""
    reads = DepthLayout.of(residual, model.num_layers).reads(reader)
    writes = reader < model.num_sublayers
    own = mode_of(residual, model.norm_eps).parameters(reads, model.hidden_size, writes)
    return sum(prod(initial.shape) for initial in own.values())


def total_parameters(model: ModelConfig, residual: ResidualConfig, padded_vocabulary: int) -> int:
    """Parameters of the whole model, each counted once however many ranks hold it."""
    layers = model.num_layers * layer_parameters(model).total
    readers = sum(reader_parameters(model, residual, reader) for reader in range(model.num_sublayers + 1))
    tables = embedding_parameters(model, padded_vocabulary) + head_parameters(model, padded_vocabulary)
    return tables + layers + readers


def layer_forward_flops(model: ModelConfig, sequence_length: int) -> float:
    """Forward FLOPs of one layer for one token: 2 a matrix parameter, and causal attention over half the sequence.

    Attention scores and their weighted sum are 2 * D multiply-adds a visible position, `sequence_length / 2`
    positions on average. That is an upper bound where attention stays inside documents.
    """
    matrices = layer_parameters(model).matrices
    return 2 * matrices + 2 * model.hidden_size * sequence_length


def head_forward_flops(model: ModelConfig, padded_vocabulary: int) -> float:
    """Forward FLOPs of the output projection for one token."""
    return 2 * padded_vocabulary * model.hidden_size


def training_flops_per_token(model: ModelConfig, padded_vocabulary: int, sequence_length: int) -> float:
    """FLOPs of forward and backward for one token: three times the forward ones.

    Norms, softmax and the depth aggregation are left out, as is usual for model FLOPs; the aggregation moves
    bytes rather than computes. What it would add is `depth_flops_per_token`.
    """
    layers = model.num_layers * layer_forward_flops(model, sequence_length)
    return 3 * (layers + head_forward_flops(model, padded_vocabulary))


def depth_flops_per_token(model: ModelConfig, residual: ResidualConfig) -> float:
    """FLOPs of the depth reads for one token, forward and backward, which model FLOPs leave out.

    A score and a weighted term are 2 * D multiply-adds each, of every source that a reader weighs; learned numbers
    (`denseformer`) need no scores, sums (`standard`, `gated`) neither. Norms and softmax are left out here, too.
    """
    products = {"denseformer": 1, "full": 2, "block": 2}.get(residual.mode, 0)
    layout = DepthLayout.of(residual, model.num_layers)
    sources = sum(layout.reads(reader).count for reader in range(model.num_sublayers + 1))
    return 3 * products * 2 * model.hidden_size * sources


def flops_in_words(model: ModelConfig, padded_vocabulary: int, sequence_length: int) -> str:
    """The formula of `training_flops_per_token` with its numbers."""
    matrices = layer_parameters(model).matrices
    layer = (
        f"{model.num_layers} layers (2 * {matrices:,} matrix parameters + 2 * {model.hidden_size} * {sequence_length})"
    )
    head = f"2 * {padded_vocabulary} * {model.hidden_size}"
    total = training_flops_per_token(model, padded_vocabulary, sequence_length)
    return f"model FLOPs a token: 3 * ({layer} + {head}) = {total:.4g}"
