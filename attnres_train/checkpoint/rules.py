"""Rules of the `[checkpoint]` section: what a run goes on from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attnres_train.checkpoint.folder import candidates, is_stated
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.config.keys import all_keys
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import config_values
from attnres_train.errors import Problem, Refused


def problems(config: RunConfig, world: int | None) -> Iterator[Problem]:
    """Whether there is a checkpoint whose weights alone can be taken."""
    checkpoint = config.checkpoint
    if checkpoint.load == "weights" and not is_stated(checkpoint.resume):
        message = f'"weights", but checkpoint.resume = "{checkpoint.resume}" names no checkpoint to take them from'
        remedy = 'write the path of one as checkpoint.resume, or remove "weights": a run goes on from its own exactly'
        yield Problem("checkpoint.load", message, remedy)


def file_problems(config: RunConfig, folder: Path) -> Iterator[Problem]:
    """Whether there is a checkpoint to resume from, in the run's `folder` or as named, where one is asked for."""
    try:
        candidates(config.checkpoint.resume, folder, config.checkpoint.load)
    except Refused as refused:
        yield from refused.problems


def resume_problems(config: RunConfig, folder: Path) -> list[Problem]:
    """What keeps `config` from going on from its newest checkpoint: its data, its tokenizer, or that nothing is left.

    Nothing where the model is another one, too: the resume knows its tensors, and tells all differences at once.
    """
    checkpoint = config.checkpoint
    try:
        newest = next(iter(candidates(checkpoint.resume, folder, checkpoint.load)), None)
        manifest = None if newest is None else read_manifest(newest)
    except Refused:
        return []  # `file_problems` tells of it, or the resume passes over it
    if manifest is None or config.data.train is None:
        return []
    # Both import numpy, which a plan can do without.
    from attnres_train.checkpoint.fit import differences_but_for_tensors, nothing_to_train
    from attnres_train.corpora import open_corpora

    weights_only = checkpoint.load == "weights" and newest == Path(checkpoint.resume).absolute()
    settings = config_values(config, all_keys())
    fingerprints = open_corpora(config).fingerprints(manifest.draw_of_data(config.training.seed))
    found = differences_but_for_tensors(manifest, fingerprints, settings, weights_only=weights_only)
    if any(one.allowed_as == "settings" for one in found):
        return []
    refused = [one.problem for one in found if one.allowed_as not in config.checkpoint.allow]
    return refused if weights_only else [*nothing_to_train(manifest, settings), *refused]
