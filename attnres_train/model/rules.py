"""Rules of the `[model]` section."""

from __future__ import annotations

from collections.abc import Iterator

from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem
from attnres_train.words import join_or, nearest_divisors, nearest_multiples


def problems(config: RunConfig, world: int | None) -> Iterator[Problem]:
    """Problems of the widths and heads."""
    model = config.model
    width, heads, groups = model.hidden_size, model.num_attention_heads, model.query_groups
    near = join_or(nearest_multiples(width, 2 * heads))
    if width % heads:
        message = f"{width} is not a multiple of model.num_attention_heads = {heads}"
        yield Problem("model.hidden_size", message, f"nearest widths with an even head size: {near}")
    elif model.head_size % 2:
        message = f"{width} / {heads} heads = {model.head_size}, but rotary positions need an even head size"
        yield Problem("model.hidden_size", message, f"nearest: {near}")
    if heads % groups:
        message = f"{groups} does not divide model.num_attention_heads = {heads}"
        yield Problem("model.num_query_groups", message, f"write {join_or(nearest_divisors(groups, heads))}")
