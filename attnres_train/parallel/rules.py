"""Rules of the `[parallel]` section: what the degrees ask of each other and of the model."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem, Unused
from attnres_train.words import counted, join_or, nearest_divisors

_STAGES = ("parallel.pipeline", "parallel.virtual")


def problems(config: RunConfig, world: int | None) -> Iterator[Problem]:
    """Problems of the degrees and of the split into stages; of the number of ranks, the batch's rules tell."""
    yield from _tensor(config)
    yield from _grid(config)
    yield from _stages(config)


def _tensor(config: RunConfig) -> Iterator[Problem]:
    model, parallel, tensor = config.model, config.parallel, config.parallel.tensor
    divided = {
        "model.num_attention_heads": model.num_attention_heads,
        "model.num_query_groups": model.query_groups,
        "model.ffn_hidden_size": model.ffn_hidden_size,
    }
    if parallel.sequence:
        divided["training.sequence_length"] = config.training.sequence_length
        if tensor == 1:
            message = "true, but parallel.tensor = 1: there is no rank to share the sequence with"
            remedy = "set parallel.tensor to 2 or more, or parallel.sequence = false"
            yield Unused("parallel.sequence", message, remedy, made_by=("parallel.tensor",))
    broken = [f"{key} = {number}" for key, number in divided.items() if number % tensor]
    if broken:
        verb = "is no multiple" if len(broken) == 1 else "are no multiples"
        common = gcd(*divided.values())
        remedy = f"degrees that divide all of them: {join_or(nearest_divisors(tensor, common))}"
        yield Problem("parallel.tensor", f"{' and '.join(broken)} {verb} of parallel.tensor = {tensor}", remedy)


def _grid(config: RunConfig) -> Iterator[Problem]:
    parallel = config.parallel
    if parallel.virtual > 1 and parallel.pipeline == 1:
        message = f"{parallel.virtual}, but parallel.pipeline = 1: chunks interleave over two ranks or more"
        remedy = "set parallel.virtual = 1, or parallel.pipeline to 2 or more"
        yield Unused("parallel.virtual", message, remedy, made_by=("parallel.pipeline",))
    group = parallel.micro_batch_group
    if group is not None and parallel.virtual == 1:
        message = f"{group}, but parallel.virtual = 1: groups take turns between the stages of a rank"
        remedy = "remove it, or set parallel.virtual to 2 or more"
        yield Unused("parallel.micro_batch_group", message, remedy, made_by=_STAGES)
    elif group is not None and group < parallel.pipeline:
        message = f"{group} is less than parallel.pipeline = {parallel.pipeline}: a group must fill the pipeline"
        remedy = f"write {parallel.pipeline} or more, or remove it"
        yield Unused("parallel.micro_batch_group", message, remedy, made_by=_STAGES)
    for key, degree in (("parallel.context", parallel.context), ("parallel.expert", parallel.expert)):
        if degree > 1:
            what = key.rpartition(".")[2]
            yield Problem(key, f"{degree}: {what} parallelism is not in this version", f"set {key} = 1")


def _stages(config: RunConfig) -> Iterator[Problem]:
    parallel, layers = config.parallel, config.model.num_layers
    stages, split = parallel.num_stages, parallel.layers_per_stage
    grid = f"pipeline {parallel.pipeline} * virtual {parallel.virtual} = {counted(stages, 'stage')}"
    if split is None:
        if layers < stages:
            message = f"{grid}, but model.num_layers = {layers}: not every stage gets one"
            empty = [1] * layers + [0] * (stages - layers)
            remedy = f"make pipeline * virtual {layers} or less, or state parallel.layers_per_stage = {empty}"
            yield Problem("parallel.pipeline", message, remedy)
        return
    if len(split) != stages:
        message = f"{counted(len(split), 'number')}, wanted {stages} ({grid})"
        remedy = f"write {counted(stages, 'number')} with a sum of {layers}"
        yield Unused("parallel.layers_per_stage", message, remedy, made_by=_STAGES)
    if min(split, default=0) < 0:
        message = f"{min(split)} layers on a stage"
        yield Problem("parallel.layers_per_stage", message, "write 0 or more for every stage")
    if parallel.history_cache == "on" and not parallel.exact_gradients and 0 in split[1:-1]:
        message = f'"on", but parallel.layers_per_stage = {list(split)} has a stage of no layers between others'
        remedy = 'write history_cache = "auto" or "off", or give every stage but the first and the last a layer'
        yield Problem("parallel.history_cache", message, remedy)
    if sum(split) != layers:
        message = f"sum {sum(split)}, wanted {layers} (model.num_layers)"
        even = [layers // stages + (stage < layers % stages) for stage in range(stages)]
        remedy = f"for instance {even}; or leave it out to balance"
        yield Unused("parallel.layers_per_stage", message, remedy, made_by=("model.num_layers", *_STAGES))
