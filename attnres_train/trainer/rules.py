"""Rules of the `[training]` section.

Batch arithmetic: global batch = micro-batch * accumulation * data degree, and what pipelines ask of it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem, Unused
from attnres_train.parallel.schedule import Schedule
from attnres_train.words import counted, join_or, nearest_multiples


def problems(config: RunConfig, world: int | None) -> Iterator[Problem]:
    """Problems of the number of ranks, the batch and the steps; a `world` of None stands for one replica."""
    parallel = config.parallel
    if world is not None and world % parallel.model_ranks:
        # The data degree is unknown, and with it the rest of the arithmetic.
        yield _ranks_problem(config, world)
    else:
        yield from _arithmetic(config, 1 if world is None else parallel.data(world))
    yield from _stop(config)


def file_problems(folder: Path) -> Iterator[Problem]:
    """The nearest part of the run folder's path that exists is a folder one may write to."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        what = "cannot be written to" if there.is_dir() else "is a file"
        yield Problem("training.run_folder", f"{folder} cannot be made: {there} {what}", "choose another folder")


def _ranks_problem(config: RunConfig, world: int) -> Problem:
    parallel = config.parallel
    degrees = f"tensor {parallel.tensor} * pipeline {parallel.pipeline}"
    if parallel.context > 1:
        degrees += f" * context {parallel.context}"
    are = "rank is" if world == 1 else "ranks are"
    message = f"{world} {are} no multiple of {degrees} = {counted(parallel.model_ranks, 'rank')} a replica"
    counts = join_or(nearest_multiples(world, parallel.model_ranks))
    return Problem("parallel", message, f"start {counts} ranks, or change the degrees")


def _arithmetic(config: RunConfig, data: int) -> Iterator[Problem]:
    training, parallel = config.training, config.parallel
    whole, micro, stated = training.global_batch_size, training.micro_batch_size, training.accumulation
    share = micro * data
    valid = join_or(_nearest_global_sizes(config, data))
    if micro > whole:
        message = f"{micro} is larger than training.global_batch_size = {whole}"
        most = max(1, whole // data)
        remedy = f"lower it to {most} or less, or raise the global size; nearest valid global size: {valid}"
        yield Problem("training.micro_batch_size", message, remedy)
    elif stated is not None and share * stated != whole:
        yield _accumulation_problem(config, data, stated, valid)
    elif whole % share:
        message = (
            f"{whole} is not micro_batch_size {micro} * accumulation * data {data}: "
            f"{whole} / {share} = {whole / share:.4g} micro-batches a rank"
        )
        yield Problem("training.global_batch_size", message, f"nearest valid global sizes: {valid}")
    elif parallel.pipeline > 1:
        yield from _pipeline(config, data, whole // share, valid)


def _accumulation_problem(config: RunConfig, data: int, stated: int, valid: str) -> Problem:
    whole, micro = config.training.global_batch_size, config.training.micro_batch_size
    product = micro * stated * data
    message = (
        f"micro_batch_size {micro} * accumulation {stated} * data {data} = {product}, "
        f"but training.global_batch_size = {whole}"
    )
    if whole % (micro * data):
        remedy = (
            f"write global_batch_size = {product}, or leave accumulation out: nearest valid global sizes then {valid}"
        )
    else:
        right = whole // (micro * data)
        remedy = f"write global_batch_size = {product} or accumulation = {right}, or leave accumulation out"
    return Problem("training.accumulation", message, remedy)


def _pipeline(config: RunConfig, data: int, count: int, valid: str) -> Iterator[Problem]:
    """`count` micro-batches against the pipeline.

    Fewer micro-batches than pipeline ranks never fill the pipeline: our rule. With virtual stages it is
    megatron-core's: its interleaved schedule runs them in groups and refuses a last group that is shorter than the
    pipeline.
    """
    training, parallel = config.training, config.parallel
    made = (
        f"{training.global_batch_size} / (micro_batch_size {training.micro_batch_size} * data {data}) "
        f"= {count} micro-batch{'' if count == 1 else 'es'}"
    )
    remedy = f"nearest valid global sizes: {valid}; or change parallel.pipeline or micro_batch_size"
    if count < parallel.pipeline:
        message = f"{made}, fewer than parallel.pipeline = {parallel.pipeline} stages"
        yield Problem("training.global_batch_size", message, remedy)
    elif not _runs(config, count):
        group = parallel.micro_batch_group
        if group is None:
            rule = f"no multiple of parallel.pipeline = {parallel.pipeline}, which the interleaved schedule needs"
        elif count < group:
            rule = f"fewer than parallel.micro_batch_group = {group}"
        else:
            rule = (
                f"{count % group} of them in the last group of parallel.micro_batch_group = {group}: the interleaved "
                f"schedule needs at least parallel.pipeline = {parallel.pipeline}"
            )
        message = f"{made}, {rule} (parallel.virtual = {parallel.virtual})"
        yield Problem("training.global_batch_size", message, remedy)


def _runs(config: RunConfig, count: int) -> bool:
    """Whether `count` micro-batches fill the pipeline in every group; a group that never does is another rule's."""
    parallel = config.parallel
    group = max(parallel.micro_batch_group or 1, parallel.pipeline)
    return count >= parallel.pipeline and Schedule(parallel.pipeline, parallel.virtual, count, group).is_valid


def _nearest_global_sizes(config: RunConfig, data: int) -> list[int]:
    """Global sizes next to the stated one that meet every rule here, accumulation left free."""
    share, whole = config.training.micro_batch_size * data, config.training.global_batch_size
    lower = next((count for count in range(whole // share, 0, -1) if _runs(config, count)), None)
    upper = next(count for count in itertools.count(whole // share + 1) if _runs(config, count))
    return [count * share for count in (lower, upper) if count is not None]


def _stop(config: RunConfig) -> Iterator[Problem]:
    stop, steps = config.training.stop_after_steps, config.training.steps
    if stop is not None and stop > steps:
        message = f"{stop} is after the last step, training.steps = {steps}"
        remedy = 'write less, or remove it (or write "none")'
        yield Unused("training.stop_after_steps", message, remedy, made_by=("training.steps",))
