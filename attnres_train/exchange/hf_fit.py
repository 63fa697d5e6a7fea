"""Whether a configuration is of the model of a Hugging Face folder, and how it computes at first; pure, no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attnres_train.config.keys import all_keys
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import config_values, toml_value
from attnres_train.depth.config import ResidualConfig
from attnres_train.errors import Problem
from attnres_train.exchange.hf_read_config import Described

_FREE = ("model.init_std",)
"""What a model starts as says nothing of one that is trained."""


def misfits(described: Described, config: RunConfig, vocabulary: int, where: str) -> Iterator[Problem]:
    """In which the configuration describes another model than the folder. Pure."""
    now = {
        **config_values(config, all_keys()),
        "model.num_query_groups": config.model.query_groups,
        "model.head_dim": config.model.head_size,
    }
    for key, told in described.values.items():
        if key in _FREE or _same(told, now.get(key)):
            continue
        remedy = (
            f"write {key} = {toml_value(told)}; `attnres import FOLDER --config-only OUT.toml` writes all that fits"
        )
        yield Problem(key, f"is {toml_value(now.get(key))}, {where} says {toml_value(told)}", remedy)
    if vocabulary != described.vocabulary:
        yield _of_vocabulary(described.vocabulary, vocabulary, where)


def _of_vocabulary(theirs: int, ours: int, where: str) -> Problem:
    if theirs > ours:
        what = f"the configuration makes {ours} rows, {where} has {theirs}"
        return Problem("model.vocabulary_rows", what, f"write model.vocabulary_rows = {theirs}")
    what = f"has {ours} entries, {where} has {theirs} rows for them"
    return Problem("tokenizer.model", what, "name the tokenizer that the model was trained with")


def _same(told: object, now: object) -> bool:
    """Lists and tuples, whole numbers and floats alike."""
    if isinstance(told, tuple | list) and isinstance(now, tuple | list):
        return list(told) == list(now)
    return told == now and isinstance(told, bool) == isinstance(now, bool)


def how_alike(residual: ResidualConfig) -> str:
    """How what was imported from a model with the standard residual computes at first, in words. Pure."""
    mode = residual.mode
    if mode == "standard":
        return "it computes what the imported model computes"
    if mode == "gated" or residual.window is not None:
        what = "its gates let only a part of every output in" if mode == "gated" else "its window leaves sources out"
        return f"it does not compute what the imported model computes: {what}"
    if mode == "denseformer" or residual.norm_of == "sum":
        return "it computes what the imported model computes: every reader starts as the sum, behind a norm"
    return (
        "it computes what the imported model computes but for the eps of the norms, which meets a mean instead of "
        'a sum; residual.norm_of = "sum" makes it exact'
    )


def starting_values(described: Described) -> Mapping[str, object]:
    """By dotted key of a configuration: what differs from the defaults, sizes first."""
    keys = all_keys()
    return {key: value for key, value in described.values.items() if keys[key].required or value != keys[key].default}
