"""One training step, from samples to new weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from attnres_train.checkpoint.save import NOTHING_TO_WRITE, Written
from attnres_train.config.run_config import RunConfig
from attnres_train.data.ahead import StepLoader
from attnres_train.data.loader import Batch
from attnres_train.optim.schedule import learning_rate
from attnres_train.parallel.grid import Grid
from attnres_train.parallel.pipeline import LossTotals
from attnres_train.parallel.transport import Traffic
from attnres_train.progress import StepReport, TrainState
from attnres_train.trainer.build import Parts


def train_step(
    parts: Parts,
    loader: StepLoader,
    config: RunConfig,
    state: TrainState,
    stop_requested: bool,
    writing: Written = NOTHING_TO_WRITE,
) -> tuple[TrainState, StepReport, Sequence[Batch]]:
    """Run the step after `state`: every rank calls it, and every rank gets the same report.

    `writing` is how a checkpoint stands that this rank writes meanwhile.
    """
    stopwatch = parts.pipeline.stopwatch
    with stopwatch.phase("data"):
        batches = loader.step(state.samples)
    rate = learning_rate(config.optimizer, config.schedule, config.training.steps, state.step + 1)

    parts.engine.zero_grad()
    totals = parts.pipeline.run(parts.engine.chunks, batches)
    with stopwatch.phase("optimizer"):
        update = parts.engine.step(rate)

    traffic = parts.pipeline.communicator.take_traffic()
    agreed = agree(parts.pipeline.grid, totals, traffic, stop_requested, writing)
    report = StepReport(
        loss=agreed.loss,
        grad_norm=update.grad_norm,
        learning_rate=rate,
        applied=update.applied,
        tokens=agreed.tokens,
        forward_bytes=agreed.forward_bytes,
        backward_bytes=agreed.backward_bytes,
        stop_requested=agreed.stop_requested,
        seconds=stopwatch.take(),
        kept_bytes=traffic.kept_bytes,
        not_finite=() if update.applied else culprits(parts.pipeline.grid, totals, batches),
        writing_ranks=agreed.writing_ranks,
        failed_ranks=agreed.failed_ranks,
    )
    samples = config.training.global_batch_size
    return state.after(samples=samples, tokens=report.tokens, applied=report.applied), report, batches


@dataclass(frozen=True)
class Agreed:
    """Sums over the ranks of one step."""

    loss: float
    tokens: int
    forward_bytes: int
    backward_bytes: int
    stop_requested: bool
    writing_ranks: int
    failed_ranks: int


def agree(
    grid: Grid, totals: LossTotals, traffic: Traffic, stop_requested: bool, writing: Written = NOTHING_TO_WRITE
) -> Agreed:
    """One small all-reduce: the loss where it is known, the bytes sent, whether anybody must stop or still writes."""
    counts = totals if grid.is_loss_owner else LossTotals(0.0, 0)
    mine = [counts.loss_sum, counts.tokens, traffic.forward_bytes, traffic.backward_bytes]
    mine += [stop_requested, not writing.done, writing.failure is not None]
    values = torch.tensor(mine, dtype=torch.float64)
    dist.all_reduce(values, group=grid.control)
    loss_sum, *numbers = values.tolist()
    tokens, forward_bytes, backward_bytes, stops, writing_ranks, failed_ranks = map(int, numbers)
    loss = loss_sum / tokens if tokens else float("nan")
    return Agreed(loss, tokens, forward_bytes, backward_bytes, stops > 0, writing_ranks, failed_ranks)


def culprits(grid: Grid, totals: LossTotals, batches: Sequence[Batch]) -> tuple[str, ...]:
    """Ranks and samples whose loss is not finite, in words, on every rank. A collective."""
    mine = None
    if grid.is_loss_owner and totals.not_finite:
        samples = [sample for number in totals.not_finite for sample in batches[number].sample_ids]
        mine = f"rank {grid.rank}: samples {', '.join(samples)}"
    everybody: list[str | None] = [None] * grid.world_size
    dist.all_gather_object(everybody, mine, group=grid.control)
    return tuple(text for text in everybody if text is not None)
