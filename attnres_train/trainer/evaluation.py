"""The loss on the fixed validation set, the same samples for any rank count."""

from __future__ import annotations

from collections.abc import Callable

import torch

from attnres_train.data.corpus import ValidationData
from attnres_train.data.loader import Batch, validation_batches
from attnres_train.parallel.schedule import Schedule
from attnres_train.parallel.transport import Traffic
from attnres_train.trainer.build import Parts
from attnres_train.trainer.step import agree


def evaluate(parts: Parts, data: ValidationData, micro_batch_size: int) -> float:
    """Mean loss over all counted tokens of `data`, in nats a token; every rank gets the same number."""
    grid = parts.pipeline.grid
    batches = list(validation_batches(data, micro_batch_size, grid.data_rank, grid.data))
    batches = _whole_rounds(batches, parts.pipeline.communicator.schedule)
    for chunk in parts.engine.chunks:
        chunk.eval()
    with torch.no_grad():
        totals = parts.pipeline.run(parts.engine.chunks, batches, forward_only=True)
    for chunk in parts.engine.chunks:
        chunk.train()
    parts.pipeline.communicator.take_traffic()  # neither the bytes nor the seconds are a training step's
    parts.pipeline.stopwatch.take()
    return agree(grid, totals, Traffic(), stop_requested=False).loss


def _whole_rounds(batches: list[Batch], schedule: Callable[[int], Schedule]) -> list[Batch]:
    """`batches` with uncounted ones added until the schedule can run them: an interleaved one fills its last group."""
    uncounted = batches[-1]._replace(loss_mask_BT=torch.zeros_like(batches[-1].loss_mask_BT))
    while not schedule(len(batches)).is_valid:
        batches = [*batches, uncounted]
    return batches
