"""What follows from a checked configuration without being written in it; for the plan and the trainer."""

from __future__ import annotations

from pathlib import Path

from attnres_train.config.run_config import RunConfig
from attnres_train.errors import refuse


def vocabulary_size(config: RunConfig) -> int:
    """Entries of the vocabulary: the tokenizer's, or `tokenizer.vocab_size` if there is no model file.

    Raises Refused where neither says, or where the two differ.
    """
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
