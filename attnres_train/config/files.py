"""What a configuration names must exist, and what training needs must be named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from attnres_train.checkpoint.folder import candidates
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.config.check_data import blends, check_weights
from attnres_train.config.check_engine import check_engine_files
from attnres_train.config.check_observe import check_observe_files
from attnres_train.config.keys import all_keys
from attnres_train.config.resolve import run_folder, vocabulary_size
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import config_values
from attnres_train.errors import Problem, Refused


def check_files(config: RunConfig, config_path: str | Path) -> list[Problem]:
    """Problems of the tokenizer, data and checkpoint that `config` names; relative paths from here."""
    absent = [*_tokenizer(config), *_data(config)]
    # Wrong weights are `check`'s to tell; what cannot be blended is not opened.
    can_be_opened = not absent and not any(check_weights(config))
    folder = run_folder(config, config_path)
    contents = _contents(config) if can_be_opened else []
    libraries = [*check_engine_files(config), *check_observe_files(config)]
    return [*absent, *contents, *_writable(folder), *_resume(config, folder), *libraries]


def check_resume(config: RunConfig, config_path: str | Path) -> list[Problem]:
    """What keeps `config` from going on from its newest checkpoint: its data, its tokenizer, or that nothing is left.

    Nothing where the model is another one, too: the resume knows its tensors, and tells all differences at once.
    """
    folder = run_folder(config, config_path)
    try:
        newest = next(iter(candidates(config.checkpoint.resume, folder)), None)
        manifest = None if newest is None else read_manifest(newest)
    except Refused:
        return []  # another check tells of it, or the resume passes over it
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


def check_needed_for_training(config: RunConfig) -> list[Problem]:
    """Problems of what may be left out for a plan but not for training."""
    if config.data.train is not None:
        return []
    remedy = "set data.train to the prefix of a .bin/.idx pair"
    return [Problem("data.train", "not set; there is nothing to train on", remedy)]


def _tokenizer(config: RunConfig) -> Iterator[Problem]:
    model = config.tokenizer.model
    if model is None:
        return
    if not Path(model).is_file():
        remedy = "correct the path, or make it with `python -m data_tools.train_tokenizer`"
        yield Problem("tokenizer.model", f"there is no file {Path(model).absolute()}", remedy)
        return
    try:
        vocabulary_size(config)
    except Refused as refused:
        yield from refused.problems


def _data(config: RunConfig) -> Iterator[Problem]:
    for key, weights in blends(config):
        for prefix in weights:
            absent = [
                str(Path(prefix + end).absolute()) for end in (".bin", ".idx") if not Path(prefix + end).is_file()
            ]
            if absent:
                remedy = "correct the prefix (without .bin), or make it with `python -m data_tools.preprocess`"
                yield Problem(key, f"there is no file {' and no '.join(absent)}", remedy)


def _contents(config: RunConfig) -> Iterator[Problem]:
    """The corpora are whole and were made with this tokenizer."""
    if config.data.train is None:
        return
    from attnres_train.corpora import open_corpora  # imports numpy, which a plan can do without

    try:
        open_corpora(config)
    except Refused as refused:
        yield from refused.problems


def _writable(folder: Path) -> Iterator[Problem]:
    """The nearest part of the run folder's path that exists is a folder one may write to."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        what = "cannot be written to" if there.is_dir() else "is a file"
        yield Problem("training.run_folder", f"{folder} cannot be made: {there} {what}", "choose another folder")


def _resume(config: RunConfig, folder: Path) -> Iterator[Problem]:
    try:
        candidates(config.checkpoint.resume, folder)
    except Refused as refused:
        yield from refused.problems
