"""Compute of a run in model FLOPs, and its parameters: as the run says, else as its configuration does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnres_train.config.build import build
from attnres_train.config.keys import all_keys
from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Refused
from attnres_train.report.run_folder import RunFiles
from attnres_train.setup import Setup


def flops_per_token(run: RunFiles) -> float | None:
    """Model FLOPs a token; None where neither the run's facts nor its configuration tell."""
    return _fact(run, "flops_per_token")


def parameters(run: RunFiles) -> int | None:
    """Parameters of the whole model; None likewise."""
    found = _fact(run, "parameters")
    return None if found is None else int(found)


def _fact(run: RunFiles, name: str) -> float | None:
    found = run.facts.get(name)
    if isinstance(found, int | float):
        return found
    config = run_config(run.config)
    try:
        return None if config is None else float(getattr(Setup.of(config), name))
    except Refused:  # nobody knows its vocabulary
        return None


def run_config(values: Mapping[str, Any] | None) -> RunConfig | None:
    """The configuration of `config.toml`'s values; None where they are those of another version or damaged."""
    keys = all_keys()
    if values is None or not values.keys() <= keys.keys():
        return None
    config, wrong, missing = build(dict(values), keys, lambda key: key)
    return None if wrong or missing else config
