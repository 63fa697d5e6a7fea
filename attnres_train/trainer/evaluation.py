"""The losses on the fixed validation sets, the same samples for any rank count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import torch

from attnres_train.data.loader import Batch, validation_batches
from attnres_train.data.validation import ValidationData
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


def evaluate(
    parts: Parts, sets: Mapping[str, ValidationData], micro_batch_size: int, asked_to_stop: Callable[[], bool]
) -> Evaluation:
    """Losses over all counted tokens of each of `sets`. A collective.

    The pipeline is filled and emptied once a round, one micro-batch a stage. After each round the ranks agree whether
    one of them was asked to stop; so a stop waits for one micro-batch, and no more than a round's is in memory.
    """
    for chunk in parts.engine.chunks:
        chunk.eval()
    try:
        with torch.no_grad():
            return _evaluate(parts, sets, micro_batch_size, asked_to_stop)
    finally:
        for chunk in parts.engine.chunks:
            chunk.train()


def _evaluate(
    parts: Parts, sets: Mapping[str, ValidationData], micro_batch_size: int, asked_to_stop: Callable[[], bool]
) -> Evaluation:
    grid = parts.pipeline.grid
    losses = dict.fromkeys(sets, LossSum())
    stop = False
    for name, data in sets.items():
        batches = validation_batches(data, micro_batch_size, grid.data_rank, grid.data)
        for round_ in _rounds(batches, parts.pipeline.setup.schedule_of):
            if stop:
                return Evaluation(None, stop_requested=True)
            ran = parts.pipeline.run(parts.engine.chunks, round_, forward_only=True)
            agreed = agree(grid, {name: ran.totals.whole}, {"stop": asked_to_stop()})
            losses[name] = losses[name].plus(agreed.losses[name])
            stop = agreed.counts["stop"] > 0
    return Evaluation(losses, stop)


def _rounds(batches: Iterable[Batch], schedule: Callable[[int], Schedule]) -> Iterator[list[Batch]]:
    """`batches` by as few as fill the pipeline; to the last ones uncounted ones are added until the schedule runs them:
    an interleaved one fills its last group."""
    remaining = iter(batches)
    while round_ := list(islice(remaining, schedule(1).group_size)):
        uncounted = round_[-1]._replace(loss_mask_BT=torch.zeros_like(round_[-1].loss_mask_BT))
        while not schedule(len(round_)).is_valid:
            round_.append(uncounted)
        yield round_
