"""Rules of the `[model]` section."""

from __future__ import annotations

from collections.abc import Iterator

from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem
from attnres_train.model.config import ModelConfig, RopeScaling
from attnres_train.section import changed
from attnres_train.words import join_or, nearest_divisors, nearest_multiples

_NEEDS = {
    "none": (),
    "linear": ("factor",),
    "llama3": ("factor", "original_window_tokens", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_window_tokens"),
}
_MAY_HAVE = {"yarn": ("beta_fast", "beta_slow", "attention_factor", "truncate")}
_SCALING = "model.rope_scaling"


def problems(config: RunConfig, world: int | None) -> Iterator[Problem]:
    """Problems of the widths and heads, of what attention sees, and of positions."""
    yield from _heads(config.model)
    yield from _sliding(config.model)
    yield from _scaling(config.model.rope_scaling)
    if config.model.rope_scaling.kind == "yarn" and config.model.rope_base == 1:
        yield Problem("model.rope_base", "1, but YaRN needs wavelengths that grow", "write 2 or more, such as 10000")


def _heads(model: ModelConfig) -> Iterator[Problem]:
    width, heads, groups = model.hidden_size, model.num_attention_heads, model.query_groups
    near = join_or(nearest_multiples(width, 2 * heads))
    if model.head_dim is not None and model.head_dim % 2:
        message = f"{model.head_dim}, but rotary positions need an even head size"
        yield Problem("model.head_dim", message, f"write {model.head_dim + 1}")
    elif model.head_dim is None and width % heads:
        message = f"{width} is not a multiple of model.num_attention_heads = {heads}"
        remedy = f"nearest widths with an even head size: {near}; or set model.head_dim"
        yield Problem("model.hidden_size", message, remedy)
    elif model.head_size % 2:
        message = f"{width} / {heads} heads = {model.head_size}, but rotary positions need an even head size"
        yield Problem("model.hidden_size", message, f"nearest: {near}")
    if heads % groups:
        message = f"{groups} does not divide model.num_attention_heads = {heads}"
        yield Problem("model.num_query_groups", message, f"write {join_or(nearest_divisors(groups, heads))}")


def _sliding(model: ModelConfig) -> Iterator[Problem]:
    key, layers = "model.sliding_layers", model.sliding_layers
    if layers is None:
        return
    if model.sliding_window is None:
        yield Problem(key, f"{list(layers)}, but model.sliding_window is not set", "set it, or remove the list")
    if not layers:
        yield Problem(key, "names no layer", "name one, or remove model.sliding_window and the list")
    if wrong := [layer for layer in layers if not 0 <= layer < model.num_layers]:
        message = f"names layer {wrong[0]} of a model with layers 0 to {model.num_layers - 1}"
        yield Problem(key, message, "layers are counted from 0")
    if list(layers) != sorted(set(layers)):
        yield Problem(key, f"{list(layers)} is not in order, or names a layer twice", f"write {sorted(set(layers))}")


def _scaling(scaling: RopeScaling) -> Iterator[Problem]:
    needs = _NEEDS[scaling.kind]
    for name in needs:
        if getattr(scaling, name) is None:
            remedy = f'set it, or write {_SCALING}.kind = "none"'
            yield Problem(f"{_SCALING}.{name}", f'not set, but kind = "{scaling.kind}" needs it', remedy)
    for name in sorted(changed(scaling).keys() - {"kind", *needs, *_MAY_HAVE.get(scaling.kind, ())}):
        kinds = [kind for kind in _NEEDS if name in (*_NEEDS[kind], *_MAY_HAVE.get(kind, ()))]
        message = f'{getattr(scaling, name)!r}, but kind = "{scaling.kind}" has no such option'
        yield Problem(f"{_SCALING}.{name}", message, f"remove it, or set kind = {join_or([repr(k) for k in kinds])}")
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if low is not None and high is not None and low >= high:
        message = f"{low}, but high_freq_factor = {high} is not above it"
        yield Problem(f"{_SCALING}.low_freq_factor", message, "write less")
    if scaling.kind == "yarn" and scaling.beta_fast <= scaling.beta_slow:
        message = f"{scaling.beta_fast}, but beta_slow = {scaling.beta_slow} is not below it"
        yield Problem(f"{_SCALING}.beta_fast", message, "write more")
