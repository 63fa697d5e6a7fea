"""The losses on the fixed validation sets, the same samples for any rank count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import nn

from attnres_train.data.loader import Batch, validation_batches
from attnres_train.data.validation import ValidationData
from attnres_train.parallel.pipeline import Pipeline
from attnres_train.parallel.schedule import Schedule
from attnres_train.progress import LossSum
from attnres_train.trainer.build import Parts
from attnres_train.trainer.step import agree


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found, the same on every rank."""

    losses: Mapping[str, LossSum] | None
    """By validation set; None where a stop signal came before its end."""
    stop_requested: bool
    positions: Mapping[str, Sequence[LossSum]] = field(default_factory=dict)
    """By validation set, of each stretch of the window, where stretches are asked for."""


def evaluate(
    parts: Parts, sets: Mapping[str, ValidationData], micro_batch_size: int, asked_to_stop: Callable[[], bool]
) -> Evaluation:
    """Losses of what trains over all counted tokens of each of `sets`. A collective."""
    return losses_of(parts.engine.chunks, parts.pipeline, sets, micro_batch_size, asked_to_stop)


def losses_of(
    chunks: Sequence[nn.Module],
    pipeline: Pipeline,
    sets: Mapping[str, ValidationData],
    micro_batch_size: int,
    asked_to_stop: Callable[[], bool],
    stretches: int = 1,
) -> Evaluation:
    """Losses over all counted tokens of each of `sets`, in so many equal `stretches` of the window. A collective.

    The pipeline is filled and emptied once a round, one micro-batch a stage. After each round the ranks agree whether
    one of them was asked to stop; so a stop waits for one micro-batch, and no more than a round's is in memory.
    """
    for chunk in chunks:
        chunk.eval()
    try:
        with torch.no_grad():
            return _losses_of(chunks, pipeline, sets, micro_batch_size, asked_to_stop, stretches)
    finally:
        for chunk in chunks:
            chunk.train()


def _losses_of(
    chunks: Sequence[nn.Module],
    pipeline: Pipeline,
    sets: Mapping[str, ValidationData],
    micro_batch_size: int,
    asked_to_stop: Callable[[], bool],
    stretches: int,
) -> Evaluation:
    grid = pipeline.grid
    # The whole, then the stretches; there are none of one.
    parts = range(1 + stretches if stretches > 1 else 1)
    sums = {name: [LossSum()] * len(parts) for name in sets}
    stop = False
    for name, data in sets.items():
        batches = validation_batches(data, micro_batch_size, grid.data_rank, grid.data)
        for round_ in _rounds(batches, pipeline.setup.schedule_of):
            if stop:
                return Evaluation(None, stop_requested=True)
            totals = pipeline.run(chunks, round_, forward_only=True, stretches=stretches).totals
            mine = {str(part): loss for part, loss in zip(parts, (totals.whole, *totals.positions), strict=False)}
            agreed = agree(grid, {**{str(part): LossSum() for part in parts}, **mine}, {"stop": asked_to_stop()})
            sums[name] = [sums[name][part].plus(agreed.losses[str(part)]) for part in parts]
            stop = agreed.counts["stop"] > 0
    positions = {name: tuple(found[1:]) for name, found in sums.items()}
    return Evaluation({name: found[0] for name, found in sums.items()}, stop, positions)


def _rounds(batches: Iterable[Batch], schedule: Callable[[int], Schedule]) -> Iterator[list[Batch]]:
    """`batches` by as few as fill the pipeline; to the last ones uncounted ones are added until the schedule runs them:
    an interleaved one fills its last group."""
    remaining = iter(batches)
    while round_ := list(islice(remaining, schedule(1).group_size)):
        uncounted = round_[-1]._replace(loss_mask_BT=torch.zeros_like(round_[-1].loss_mask_BT))
        while not schedule(len(round_)).is_valid:
            round_.append(uncounted)
        yield round_
