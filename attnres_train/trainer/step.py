"""One training step, from samples to new weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from attnres_train.config.run_config import RunConfig
from attnres_train.data.ahead import StepLoader
from attnres_train.data.config import source_names
from attnres_train.data.loader import Batch
from attnres_train.optim.schedule import learning_rate
from attnres_train.parallel.grid import Grid
from attnres_train.parallel.pipeline import LossTotals
from attnres_train.parallel.stopwatch import Stopwatch
from attnres_train.progress import LossSum, StepReport, TrainState, added
from attnres_train.trainer.build import Parts


def train_step(
    parts: Parts,
    loader: StepLoader,
    config: RunConfig,
    state: TrainState,
    votes: Mapping[str, bool],
) -> tuple[TrainState, StepReport, Sequence[Batch]]:
    """Run the step after `state`: every rank calls it, and every rank gets the same report.

    `votes` are of this rank, by names that are the same on every rank; the report counts them.
    """
    stopwatch = Stopwatch(parts.pipeline.grid.device)
    with stopwatch.phase("data"):
        batches = loader.step(state.samples)
    rate = learning_rate(config.optimizer, config.schedule, config.training.steps, state.step + 1)

    parts.engine.zero_grad()
    ran = parts.pipeline.run(parts.engine.chunks, batches)
    with stopwatch.phase("optimizer"):
        update = parts.engine.step(rate)

    losses = losses_by_source(ran.totals, batches, source_names(config.data.train))
    sent = {"forward": ran.traffic.forward_bytes, "backward": ran.traffic.backward_bytes}
    agreed = agree(parts.pipeline.grid, losses, {**votes, **sent})
    unrecorded = added(state.losses, agreed.losses)
    report = StepReport(
        losses=unrecorded,
        grad_norm=update.grad_norm,
        learning_rate=rate,
        applied=update.applied,
        tokens=agreed.tokens,
        forward_bytes=agreed.counts["forward"],
        backward_bytes=agreed.counts["backward"],
        votes={name: agreed.counts[name] for name in votes},
        seconds={**ran.seconds, **stopwatch.take()},
        kept_bytes=ran.traffic.kept_bytes,
        not_finite=() if update.applied else culprits(parts.pipeline.grid, ran.totals, batches),
    )
    recorded = config.observe.records(state.step + 1, applied=update.applied)
    state = state.after(
        samples=config.training.global_batch_size,
        tokens=agreed.tokens,
        applied=update.applied,
        losses={} if recorded else unrecorded,
    )
    return state, report, batches


def losses_by_source(totals: LossTotals, batches: Sequence[Batch], names: Mapping[int, str]) -> dict[str, LossSum]:
    """`train`, and `train/NAME` of each source in `names`, by its number: every one, so that ranks agree on them."""
    sums = {"train": totals.whole} | {f"train/{name}": LossSum() for name in names.values()}
    if names and totals.samples:
        sources = [source for batch in batches for source in batch.sources]
        for source, of_sample in zip(sources, totals.samples, strict=True):
            tag = f"train/{names[source]}"
            sums[tag] = sums[tag].plus(of_sample)
    return sums


@dataclass(frozen=True)
class Agreed:
    """Sums over the ranks of one step."""

    losses: Mapping[str, LossSum]
    counts: Mapping[str, int]

    @property
    def tokens(self) -> int:
        """That count, of the first of `losses`."""
        return next(iter(self.losses.values())).tokens


def agree(grid: Grid, losses: Mapping[str, LossSum], counts: Mapping[str, int]) -> Agreed:
    """One small all-reduce: losses where they are known, and whatever else every rank counts, bytes and votes.

    Both have the same names on every rank.
    """
    known = [number for of_name in losses.values() for number in of_name]
    mine = [*(known if grid.owns_loss else [0.0] * len(known)), *counts.values()]
    values = torch.tensor(mine, dtype=torch.float64)
    dist.all_reduce(values, group=grid.control)
    sums = values[: len(known)].tolist()
    pairs = zip(sums[::2], sums[1::2], strict=True)
    return Agreed(
        {name: LossSum(loss, int(tokens)) for name, (loss, tokens) in zip(losses, pairs, strict=True)},
        dict(zip(counts, values[len(known) :].long().tolist(), strict=True)),
    )


def culprits(grid: Grid, totals: LossTotals, batches: Sequence[Batch]) -> tuple[str, ...]:
    """Ranks and samples whose loss is not finite, in words, on every rank. A collective."""
    mine = None
    if grid.owns_loss and totals.not_finite:
        samples = [sample for number in totals.not_finite for sample in batches[number].sample_ids]
        mine = f"rank {grid.rank}: samples {', '.join(samples)}"
    everybody: list[str | None] = [None] * grid.world_size
    dist.all_gather_object(everybody, mine, group=grid.control)
    return tuple(text for text in everybody if text is not None)
