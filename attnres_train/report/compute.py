"""Compute of a run in model FLOPs, its parameters, and the vocabulary both rest on, from what its files say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnres_train.config.build import build
from attnres_train.config.keys import all_keys
from attnres_train.config.run_config import RunConfig
from attnres_train.model.describe import describe
from attnres_train.model.size import training_flops_per_token
from attnres_train.report.run_folder import Run


def flops_per_token(run: Run) -> float | None:
    """Model FLOPs a token, as the run itself reckoned them: its rate in FLOPs over its rate in tokens.

    From the configuration where nothing is logged; None where that does not name its vocabulary either.
    """
    tokens = run.curve("throughput/tokens_per_second_per_device")
    tflops = run.curve("throughput/model_tflops_per_device")
    if tokens is not None and tflops is not None:
        _, ours, theirs = np.intersect1d(tokens.steps, tflops.steps, return_indices=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = tflops.values[theirs] * 1e12 / tokens.values[ours]
        ratios = ratios[np.isfinite(ratios) & (ratios > 0)]
        if len(ratios):
            return float(np.median(ratios))
    config = run_config(run.config)
    if config is None or config.tokenizer.vocab_size is None:
        return None
    padded = config.model.padded_vocabulary(config.tokenizer.vocab_size, config.parallel.tensor)
    return training_flops_per_token(config.model, padded, config.training.sequence_length)


def parameters(run: Run) -> int | None:
    """Parameters of the whole model. The padded vocabulary is the one that the run's FLOPs a token tell."""
    config, flops = run_config(run.config), flops_per_token(run)
    if config is None or flops is None:
        return None
    model = config.model
    layers = training_flops_per_token(model, 0, config.training.sequence_length)
    padded = round((flops - layers) / (3 * 2 * model.hidden_size))
    return describe(model, config.residual, padded, padded).parameters


def run_config(values: Mapping[str, Any] | None) -> RunConfig | None:
    """The configuration of `config.toml`'s values; None where they are those of another version or damaged."""
    keys = all_keys()
    if values is None or not values.keys() <= keys.keys():
        return None
    config, wrong, missing = build(dict(values), keys, lambda key: key)
    return None if wrong or missing else config
