"""Rules of the `[checkpoint]` section: what a run goes on from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attnres_train.checkpoint.folder import candidates
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.config.keys import all_keys
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import config_values
from attnres_train.errors import Problem, Refused


def file_problems(config: RunConfig, folder: Path) -> Iterator[Problem]:
    """Whether there is a checkpoint to resume from, in the run's `folder` or as named, where one is asked for."""
    try:
        candidates(config.checkpoint.resume, folder)
    except Refused as refused:
        yield from refused.problems


def resume_problems(config: RunConfig, folder: Path) -> list[Problem]:
    """What keeps `config` from going on from its newest checkpoint: its data, its tokenizer, or that nothing is left.

    Nothing where the model is another one, too: the resume knows its tensors, and tells all differences at once.
    """
    try:
        newest = next(iter(candidates(config.checkpoint.resume, folder)), None)
        manifest = None if newest is None else read_manifest(newest)
    except Refused:
        return []  # `file_problems` tells of it, or the resume passes over it
    if manifest is None or config.data.train is None:
        return []
    # Both import numpy, which a plan can do without.
    from attnres_train.checkpoint.fit import differences_but_for_tensors, nothing_to_train
    from attnres_train.corpora import open_corpora

    settings = config_values(config, all_keys())
    fingerprints = open_corpora(config).fingerprints(manifest.draw_of_data(config.training.seed))
    found = differences_but_for_tensors(manifest, fingerprints, settings)
    if any(one.allowed_as == "settings" for one in found):
        return []
    refused = [one.problem for one in found if one.allowed_as not in config.checkpoint.allow]
    return [*nothing_to_train(manifest, settings), *refused]
