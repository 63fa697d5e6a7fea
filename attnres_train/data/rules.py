"""Rules of the `[data]` section, and of what the run takes from it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attnres_train.config.run_config import RunConfig
from attnres_train.data.config import Weights, blend_weights, validation_sets
from attnres_train.data.paths import bin_path, idx_path
from attnres_train.errors import Problem, Unused

_MOST_SAMPLES = 2**63 - 1
"""Of a run: positions are 64-bit numbers."""


def problems(config: RunConfig, world: int | None) -> Iterator[Problem]:
    """Problems of the blends, of the evaluation and of the number of samples; data are asked for by
    `training_problems`, since a configuration may be made for a plan alone."""
    yield from weight_problems(config)
    data, training = config.data, config.training
    if data.valid is not None and data.train is None:
        message, remedy = "set, but data.train is not", "set data.train, or remove data.valid"
        yield Unused("data.valid", message, remedy, made_by=("data.train",))
    every = training.eval_interval_steps
    if every is not None and data.train is not None and data.valid is None:
        message = f"{every}, but data.valid is not set: there is nothing to evaluate on"
        remedy = 'set data.valid, or remove it (or write "none")'
        yield Unused("training.eval_interval_steps", message, remedy, made_by=("data.valid",))
    unnamed = [] if isinstance(data.valid, dict) and "" in data.valid else [""]
    for name in validation_sets(data.valid):
        if not re.fullmatch(r"[\w.-]+", name) and name not in unnamed:
            remedy = "name it with letters, digits, `_`, `-` and `.`; a blend is {prefix = number}"
            yield Problem("data.valid", f"{name!r} is no name for a set: it is part of its curve's tag", remedy)
    longest = _MOST_SAMPLES // training.global_batch_size
    if training.steps > longest:
        message = f"{training.steps} steps of {training.global_batch_size} samples are more than can be counted"
        yield Problem("training.steps", message, f"write {longest} or less")


def training_problems(config: RunConfig) -> Iterator[Problem]:
    """What a plan can do without and training cannot."""
    if config.data.train is None:
        remedy = "set data.train to the prefix of a .bin/.idx pair"
        yield Problem("data.train", "not set; there is nothing to train on", remedy)


def file_problems(config: RunConfig) -> Iterator[Problem]:
    """Whether the pairs are there."""
    for key, weights in _blends(config):
        for prefix in weights:
            pair = (bin_path(prefix), idx_path(prefix))
            if absent := [str(path.absolute()) for path in pair if not path.is_file()]:
                remedy = "correct the prefix (without .bin), or make it with `python -m data_tools.preprocess`"
                yield Problem(key, f"there is no file {' and no '.join(absent)}", remedy)


def _blends(config: RunConfig) -> Iterator[tuple[str, Weights]]:
    """Every blend that `[data]` names, with its key."""
    if config.data.train is not None:
        yield "data.train", blend_weights(config.data.train)
    for name, weights in validation_sets(config.data.valid).items():
        yield f"data.valid.{name}" if name else "data.valid", weights


def weight_problems(config: RunConfig) -> Iterator[Problem]:
    """Problems of the names and weights of the blends."""
    for key, weights in _blends(config):
        if "" in weights:
            yield Problem(key, "an empty prefix", "write the path of a .bin/.idx pair without its ending")
        if negative := {prefix: weight for prefix, weight in weights.items() if weight < 0}:
            shown = ", ".join(f"{prefix} = {weight:g}" for prefix, weight in negative.items())
            yield Problem(key, f"negative weight: {shown}", "weights are 0 or more; 0 leaves a corpus out")
        elif not any(weights.values()):
            yield Problem(key, f"no weight above 0 among {len(weights)}", "give at least one corpus a weight above 0")
