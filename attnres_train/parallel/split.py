"""Layers to pipeline stages, as plain arithmetic: every layer exactly once, the head counted."""

from __future__ import annotations

from attnres_train.model.config import ModelConfig
from attnres_train.model.size import costs_of


def balanced_split(num_layers: int, num_stages: int, head_cost_layers: float = 0.0) -> tuple[int, ...]:
    """Layers of each stage such that the dearest stage is as cheap as can be.

    A layer costs 1, the head of the last stage `head_cost_layers`, the embedding (a look-up) nothing. Every
    stage gets at least one layer; where stages tie the earlier one gets the layer, so that without a head the
    split is near-even with the larger stages first.

    Raises ValueError if there are fewer layers than stages.
    """
    if num_layers < num_stages:
        raise ValueError(f"{num_layers} layers cannot give each of {num_stages} stages one")
    layers = [1] * num_stages
    for _ in range(num_layers - num_stages):
        cost = [count + head_cost_layers * (stage == num_stages - 1) for stage, count in enumerate(layers)]
        layers[cost.index(min(cost))] += 1
    return tuple(layers)


def head_cost_in_layers(model: ModelConfig, padded_vocabulary: int, sequence_length: int) -> float:
    """Forward cost of the output projection, in transformer layers of mean cost."""
    costs = costs_of(model, padded_vocabulary)
    layers = costs.all_layers.forward_flops(sequence_length)
    return model.num_layers * costs.head.forward_flops(sequence_length) / layers


def stage_layers(layers_per_stage: tuple[int, ...], stage: int) -> range:
    """The transformer layers of `stage`, numbered over the whole model from 0."""
    first = sum(layers_per_stage[:stage])
    return range(first, first + layers_per_stage[stage])


def rank_and_chunk(stage: int, pipeline: int) -> tuple[int, int]:
    """Pipeline rank and model chunk of a global stage: stages go round the ranks, `virtual` times."""
    return stage % pipeline, stage // pipeline
