"""The loss on the fixed validation set, the same samples for any rank count."""

from __future__ import annotations

from attnres_train.data.loader import Batch, validation_batches
from attnres_train.data.corpus import ValidationData
from attnres_train.parallel.transport import Traffic
from attnres_train.trainer.build import Parts
from attnres_train.trainer.step import agree

import torch


def evaluate(parts: Parts, data: ValidationData, micro_batch_size: int) -> float:
    """Mean loss over all counted tokens of `data`, in nats a token; every rank gets the same number."""
    grid = parts.pipeline.grid
    batches: list[Batch] = validation_batches(
        data,
        micro_batch_size=micro_batch_size,
        data_rank=grid.data_rank,
        data_ranks=grid.data,
        # The interleaved schedule runs whole rounds of micro-batches.
        multiple_of=grid.parallel.pipeline if grid.parallel.virtual > 1 else 1,
    )
    for chunk in parts.engine.chunks:
        chunk.eval()
    with torch.no_grad():
        totals = parts.pipeline.run(parts.engine.chunks, batches, forward_only=True)
    for chunk in parts.engine.chunks:
        chunk.train()
    parts.pipeline.communicator.take_traffic()  # bytes of evaluation are not the training step's
    return agree(grid, totals, Traffic(), stop_requested=False).loss
