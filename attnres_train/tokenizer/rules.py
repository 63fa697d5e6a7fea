"""Rules of the `[tokenizer]` section."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attnres_train.config.resolve import vocabulary_size
from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem, Refused


def problems(config: RunConfig, world: int | None) -> Iterator[Problem]:
    """Whether the size of the vocabulary can be known."""
    stated = (config.tokenizer.model, config.tokenizer.vocab_size, config.model.vocabulary_rows)
    if stated == (None, None, None):
        remedy = "set tokenizer.model (for training), or tokenizer.vocab_size (for a plan)"
        yield Problem("tokenizer.model", "neither it nor tokenizer.vocab_size is set", remedy)


def file_problems(config: RunConfig) -> Iterator[Problem]:
    """Whether the model is there, is one, and has the size that is stated."""
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
