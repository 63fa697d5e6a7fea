"""What follows from a checked configuration without being written in it; for the plan and the trainer."""

from __future__ import annotations

from pathlib import Path

from attnres_train.config.run_config import RunConfig
from attnres_train.errors import refuse


def vocabulary_size(config: RunConfig) -> int:
    """Rows of the embedding before padding: `model.vocabulary_rows`, else one for every entry of the tokenizer.

    Raises Refused where nothing says how many, or where one says otherwise than another.
    """
    rows = config.model.vocabulary_rows
    if rows is not None and config.tokenizer.model is None and config.tokenizer.vocab_size is None:
        return rows
    entries = _entries(config)
    if rows is not None and rows < entries:
        message = f"{rows}, but the tokenizer has {entries} entries"
        raise refuse("model.vocabulary_rows", message, f'write "none" or at least {entries}')
    return entries if rows is None else rows


def _entries(config: RunConfig) -> int:
    """Of the tokenizer, or `tokenizer.vocab_size` if there is no model file."""
    tokenizer = config.tokenizer
    if tokenizer.model is not None and Path(tokenizer.model).is_file():
        return _size_of_model(tokenizer.model, tokenizer.vocab_size)
    if tokenizer.vocab_size is not None:
        return tokenizer.vocab_size
    if tokenizer.model is None:
        remedy = "set tokenizer.model or tokenizer.vocab_size"
        raise refuse("tokenizer.model", "the vocabulary size is not known", remedy)
    absolute = Path(tokenizer.model).absolute()
    raise refuse("tokenizer.model", f"there is no file {absolute}", "correct the path, or set tokenizer.vocab_size")


def run_folder(config: RunConfig, config_path: str | Path) -> Path:
    """The run's folder, absolute: `training.run_folder`, else `runs/<name of the file>`."""
    stated = config.training.run_folder
    return (Path("runs") / Path(config_path).stem if stated is None else Path(stated)).absolute()


def _size_of_model(path: str, stated: int | None) -> int:
    from attnres_train.tokenizer.load import load_tokenizer

    size: int = load_tokenizer(path).vocab_size
    if stated is not None and stated != size:
        message = f"{stated}, but {path} has {size} entries"
        raise refuse("tokenizer.vocab_size", message, f"remove it, or write {size}")
    return size
