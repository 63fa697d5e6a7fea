"""What follows from a checked configuration without being written in it; for the plan and the trainer."""

from __future__ import annotations

from pathlib import Path

from attnres_train.config.run_config import RunConfig
from attnres_train.depth.layout import DepthLayout
from attnres_train.errors import refuse
from attnres_train.parallel.split import balanced_split, head_cost_in_layers
from attnres_train.parallel.wire import WirePlan


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
        raise refuse(
            "tokenizer.model",
            "the vocabulary size is not known",
            "set tokenizer.model or tokenizer.vocab_size",
        )
    absolute = Path(tokenizer.model).absolute()
    raise refuse("tokenizer.model", f"there is no file {absolute}", "correct the path, or set tokenizer.vocab_size")


def resolved_split(config: RunConfig, vocabulary: int) -> tuple[int, ...]:
    """Layers of every stage: as stated, else as `parallel.balance` says, for a vocabulary of this size."""
    parallel, model = config.parallel, config.model
    if parallel.layers_per_stage is not None:
        return parallel.layers_per_stage
    if parallel.balance == "layers":
        return balanced_split(model.num_layers, parallel.num_stages)
    padded = model.padded_vocabulary(vocabulary, parallel.tensor)
    head_cost = head_cost_in_layers(model, padded, config.training.sequence_length)
    return balanced_split(model.num_layers, parallel.num_stages, head_cost)


def wire_plan(config: RunConfig, layers_per_stage: tuple[int, ...]) -> WirePlan:
    """What crosses the stages of this split."""
    parallel = config.parallel
    return WirePlan(
        DepthLayout.of(config.residual, config.model.num_layers),
        layers_per_stage,
        parallel.pipeline,
        parallel.virtual,
        cache=parallel.caches_history,
        exact_gradients=parallel.caches_history and parallel.exact_gradients,
    )


def num_micro_batches(config: RunConfig, world_size: int) -> int:
    """Micro-batches that every rank of `world_size` runs a step."""
    data = config.parallel.data(world_size)
    return config.training.global_batch_size // (config.training.micro_batch_size * data)


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
