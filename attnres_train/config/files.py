"""What a configuration names must exist, and what training needs must be named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attnres_train.config.names import nearest_word
from attnres_train.config.resolve import vocabulary_size
from attnres_train.config.run_config import RunConfig
from attnres_train.data.config import blend_weights
from attnres_train.errors import Problem, Refused

RESUME_WORDS = ("auto", "must", "never")
MANIFEST = "manifest.json"


def check_files(config: RunConfig) -> list[Problem]:
    """Problems of the tokenizer, data and checkpoint that `config` names; relative paths from here."""
    return [*_tokenizer(config), *_data(config), *_resume(config)]


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
    for key, source in (("data.train", config.data.train), ("data.valid", config.data.valid)):
        for prefix in blend_weights(source) if source is not None else ():
            absent = [
                str(Path(prefix + end).absolute())
                for end in (".bin", ".idx")
                if not Path(prefix + end).is_file()
            ]
            if absent:
                remedy = (
                    "correct the prefix (without .bin), or make it with `python -m data_tools.preprocess`"
                )
                yield Problem(key, f"there is no file {' and no '.join(absent)}", remedy)


def _resume(config: RunConfig) -> Iterator[Problem]:
    resume = config.checkpoint.resume
    if resume in RESUME_WORDS or not resume:
        return
    folder = Path(resume).absolute()
    if (folder / MANIFEST).is_file():
        return
    word = nearest_word(resume, RESUME_WORDS)
    if not folder.is_dir():
        remedy = f'did you mean "{word}"?' if word else "correct the path, or write auto, must or never"
        yield Problem("checkpoint.resume", f"there is no folder {folder}", remedy)
    else:
        message = f"{folder} is no checkpoint: it has no {MANIFEST}"
        yield Problem("checkpoint.resume", message, "name a folder like RUN/checkpoints/step-00000100")
