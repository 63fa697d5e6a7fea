"""The rules of all rooms, gathered: all problems of a configuration at once, with remedies."""

from __future__ import annotations

from pathlib import Path

from attnres_train.checkpoint import rules as checkpoint
from attnres_train.config.resolve import run_folder
from attnres_train.config.run_config import RunConfig
from attnres_train.data import rules as data
from attnres_train.depth import rules as depth
from attnres_train.engine import rules as engine
from attnres_train.errors import Problem, Refused
from attnres_train.model import rules as model
from attnres_train.observe import rules as observe
from attnres_train.optim import rules as optim
from attnres_train.parallel import rules as parallel
from attnres_train.tokenizer import rules as tokenizer
from attnres_train.trainer import rules as trainer

_ROOMS = (model, parallel, depth, trainer, optim, tokenizer, data, engine, observe, checkpoint)


def check(config: RunConfig, world: int | None = None) -> list[Problem]:
    """Problems of `config` on `world` ranks; None stands for one replica of the model (data degree 1).

    Pure: looks at no file, and does not ask for data.
    """
    return [problem for room in _ROOMS for problem in room.problems(config, world)]


def check_files(config: RunConfig, config_path: str | Path) -> list[Problem]:
    """Problems of the tokenizer, data, checkpoint and libraries that `config` names; relative paths from here."""
    absent = [*tokenizer.file_problems(config), *data.file_problems(config)]
    # Wrong weights are `check`'s to tell; what cannot be blended is not opened.
    can_be_opened = not absent and not any(data.weight_problems(config))
    folder = run_folder(config, config_path)
    contents = _contents(config) if can_be_opened else ()
    kept = [*trainer.file_problems(folder), *checkpoint.file_problems(config, folder)]
    return [*absent, *contents, *kept, *engine.file_problems(config), *observe.file_problems(config)]


def _contents(config: RunConfig) -> tuple[Problem, ...]:
    """Whether the corpora are whole and were made with this tokenizer."""
    if config.data.train is None:
        return ()
    from attnres_train.corpora import open_corpora  # imports numpy, which a plan can do without

    try:
        open_corpora(config)
    except Refused as refused:
        return refused.problems
    return ()
