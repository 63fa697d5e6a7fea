"""What the parts of the model cost, and FLOPs a token, as plain arithmetic (no torch)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache

from attnres_train.depth.config import ResidualConfig
from attnres_train.depth.layout import DepthLayout
from attnres_train.depth.modes.choose import MODES
from attnres_train.model.branches.choose import branches_of
from attnres_train.model.config import ModelConfig
from attnres_train.model.cost import Cost, Elements, twice_seen

_HEAD_OPERATIONS = 15
_EMBEDDING_OPERATIONS = 4
_EMBEDDING_PASSES = 2
"""Over the width: rows read, and written."""


@dataclass(frozen=True)
class Costs:
    """Of the parts of a model, each without its reader of the depth."""

    embedding: Cost
    layers: tuple[tuple[Cost, Cost], ...]
    """Of both sublayers of every transformer layer."""
    head: Cost

    @property
    def all_layers(self) -> Cost:
        return self.of_layers(range(len(self.layers)))

    def of_layers(self, layers: range) -> Cost:
        """The sum over transformer layers; kept, since plans ask for the same ones again and again."""
        if layers not in self._sums:
            self._sums[layers] = sum((cost for layer in layers for cost in self.layers[layer]), Cost())
        return self._sums[layers]

    @cached_property
    def _sums(self) -> dict[range, Cost]:
        return {}


@lru_cache(maxsize=256)
def costs_of(model: ModelConfig, padded_vocabulary: int) -> Costs:
    """With a head of `padded_vocabulary` logits, tied or not: a tied table is multiplied as well."""
    width = model.hidden_size
    branches = [branches_of(model, layer) for layer in range(model.num_layers)]
    return Costs(
        embedding=Cost(
            kept=Elements(width),
            passes=Elements(_EMBEDDING_PASSES * width),
            operations=_EMBEDDING_OPERATIONS,
            scatters=1,
        ),
        layers=tuple((attention.cost(), mlp.cost()) for attention, mlp in branches),
        head=Cost(matrices=padded_vocabulary * width, kept=Elements(width), operations=_HEAD_OPERATIONS, gathers=1),
    )


def training_flops_per_token(model: ModelConfig, padded_vocabulary: int, sequence_length: int) -> int:
    """FLOPs of forward and backward for one token: three times the forward ones.

    Norms, softmax and the depth aggregation are left out, as is usual for model FLOPs; the aggregation moves
    bytes rather than computes. What it would add is `depth_flops_per_token`.
    """
    costs = costs_of(model, padded_vocabulary)
    return 3 * (costs.all_layers + costs.head).forward_flops(sequence_length)


def depth_flops_per_token(model: ModelConfig, residual: ResidualConfig) -> int:
    """FLOPs of the depth reads for one token, forward and backward, which model FLOPs leave out.

    A score and a weighted term are 2 * D each, of every source that a reader weighs. Norms and softmax are left out
    here, too.
    """
    layout = DepthLayout.of(residual, model.num_layers)
    sources = sum(layout.reads(reader).count for reader in range(model.num_sublayers + 1))
    return 3 * MODES[residual.mode].products * 2 * model.hidden_size * sources


def flops_in_words(model: ModelConfig, padded_vocabulary: int, sequence_length: int) -> str:
    """The formula of `training_flops_per_token` with its numbers, layers of one kind together."""
    kinds = Counter(attention + mlp for attention, mlp in costs_of(model, padded_vocabulary).layers)
    layers = [
        f"{count} layers (2 * {cost.matrices:,} matrix parameters + {_attention_in_words(cost, sequence_length)})"
        for cost, count in kinds.items()
    ]
    head = f"2 * {padded_vocabulary} * {model.hidden_size}"
    total = training_flops_per_token(model, padded_vocabulary, sequence_length)
    return f"model FLOPs a token: 3 * ({' + '.join(layers)} + {head}) = {total:.4g}"


def _attention_in_words(cost: Cost, sequence_length: int) -> str:
    terms = [f"2 * {flops // 2} * {twice_seen(sequence_length, sees)}" for flops, sees in cost.attended]
    return " + ".join(terms)
