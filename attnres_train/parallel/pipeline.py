"""One run of megatron-core's schedule over the micro-batches of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.utils import get_attr_wrapped_model
from torch import Tensor, nn

from attnres_train.depth.history import History
from attnres_train.model.stage import StageRole
from attnres_train.parallel.feed import Fed, MicroBatch, feed
from attnres_train.parallel.grid import Grid
from attnres_train.parallel.pool import BufferPool
from attnres_train.parallel.stopwatch import Stopwatch
from attnres_train.parallel.transport import HistoryCommunicator, Outgoing, Traffic
from attnres_train.progress import LossSum
from attnres_train.setup import Setup

MIB = 2**20


@dataclass(frozen=True)
class LossTotals:
    """Losses of the counted tokens on this rank; zero where the loss is not."""

    whole: LossSum
    samples: tuple[LossSum, ...] = ()
    """Of each sample, micro-batch after micro-batch."""
    not_finite: tuple[int, ...] = ()
    """Micro-batches whose loss is not finite."""
    positions: tuple[LossSum, ...] = ()
    """Of each stretch of the window, all samples together, where stretches are asked for."""


@dataclass(frozen=True)
class Ran:
    """What one run of the schedule gave on this rank."""

    totals: LossTotals
    traffic: Traffic
    seconds: Mapping[str, float]
    """By phase: `forward`, `backward`, `waiting` (for the neighbours), `reduction` (of gradients)."""


class Pipeline:
    """The schedule, the transport and the wire plan of one rank.

    `megatron` is the configuration of the stages. `finalize` is what the schedule calls after the last backward,
    `Engine.finalize`; None leaves gradients as they are.
    """

    def __init__(self, setup: Setup, grid: Grid, megatron: TransformerConfig, *, finalize: Callable[..., None] | None):
        self.setup, self.grid = setup, grid
        plan, parallel = setup.wire, setup.config.parallel
        # Two exchanges' worth: what one brings waits for the next to take it.
        pool = BufferPool(setup.slice_shape, megatron.params_dtype, grid.device, limit=4 * (plan.slices_max + 1))
        chunk_bytes = None if parallel.chunk_mib is None else parallel.chunk_mib * MIB
        eager = grid.device.type == "cpu" if parallel.eager is None else parallel.eager
        self.stopwatch = Stopwatch(grid.device)
        self.communicator = HistoryCommunicator(
            grid, megatron, plan, pool, self.stopwatch, chunk_bytes=chunk_bytes, eager=eager, offload=parallel.offload
        )
        if finalize is not None:  # the schedule looks for it in the configuration of the chunks
            megatron.finalize_model_grads_func = self.stopwatch.timed("reduction", finalize)

    def run(
        self,
        chunks: Sequence[nn.Module],
        batches: Sequence[MicroBatch],
        *,
        forward_only: bool = False,
        stretches: int = 1,
    ) -> Ran:
        """Forward, and backward unless `forward_only`, of all `batches` on all stages.

        Afterwards the gradients of `chunks` are reduced and divided by the global token count. Losses are told apart
        for so many equal `stretches` of the window, which divide its length.
        """
        self.communicator.begin(self.setup.schedule_of(len(batches)), forward_only)
        fed = feed(batches, [_role(chunk) for chunk in chunks], self.grid.device)
        training, interleaved = self.setup.config.training, self.grid.parallel.virtual > 1
        try:
            with self.stopwatch.phase("backward"):  # what is neither forward, nor waiting, nor reduction
                reports = get_forward_backward_func()(
                    forward_step_func=partial(self._forward_step, stretches),
                    data_iterator=[enumerate(fed) for _ in chunks] if interleaved else enumerate(fed),
                    model=list(chunks) if interleaved else chunks[0],
                    num_microbatches=len(batches),
                    seq_length=training.sequence_length,
                    micro_batch_size=training.micro_batch_size,
                    forward_only=forward_only,
                    p2p_communicator=self.communicator,
                    pg_collection=self.grid.groups,
                )
        except BaseException:
            self.communicator.abandon()
            raise
        traffic = self.communicator.finish()
        return Ran(_totals(reports), traffic, self.stopwatch.take())

    def _forward_step(self, stretches: int, batches: Iterator[tuple[int, Fed]], chunk: nn.Module) -> tuple[Any, Any]:
        """The schedule's forward of one micro-batch: this chunk's output and how to turn it into a loss."""
        micro_batch, batch = next(batches)
        role = _role(chunk)
        progress = None
        if self.communicator.eager and not role.last:
            progress = partial(self.communicator.progress, micro_batch, role.stage)
        with self.stopwatch.phase("forward"):
            output = chunk(batch.tokens_BT, batch.labels_BT, batch.documents, progress)
        if isinstance(output, History):
            cache = self.communicator.cache
            output = Outgoing(cache.depart(micro_batch, role.stage, output), cache)
        else:
            self.communicator.cache.end(micro_batch, role.stage)
        return output, partial(_masked_loss, stretches, batch.loss_mask_BT)


def _role(chunk: nn.Module) -> StageRole:
    role: StageRole = get_attr_wrapped_model(chunk, "role")
    return role


def _totals(reports: Sequence[tuple[Tensor, Tensor]]) -> LossTotals:
    """From the losses and counts of every micro-batch by sample and stretch; there are none where the loss is not.

    Legend: M micro-batches, B samples, S stretches.
    """
    if not reports:
        return LossTotals(LossSum())
    losses_MBS, counts_MBS = (torch.stack(parts).double() for parts in zip(*reports, strict=True))
    by_stretch = zip(losses_MBS.sum((0, 1)).tolist(), counts_MBS.sum((0, 1)).tolist(), strict=True)
    positions = tuple(LossSum(loss, int(count)) for loss, count in by_stretch) if losses_MBS.shape[2] > 1 else ()
    losses_MB, counts_MB = losses_MBS.sum(2), counts_MBS.sum(2)
    not_finite = tuple((~losses_MB.isfinite()).any(1).nonzero().flatten().tolist())
    losses, counts = losses_MB.flatten().tolist(), counts_MB.flatten().tolist()
    samples = tuple(LossSum(loss, int(count)) for loss, count in zip(losses, counts, strict=True))
    return LossTotals(LossSum(sum(losses), int(sum(counts))), samples, not_finite, positions)


def _masked_loss(
    stretches: int, loss_mask_BT: Tensor, token_losses_BT: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Sum over counted tokens, their count (the schedule adds both up), and a report of both for each sample and
    stretch of the window."""
    counted_BT = token_losses_BT * loss_mask_BT
    tokens = loss_mask_BT.sum().to(torch.int32)
    report = tuple(part.unflatten(1, (stretches, -1)).sum(2) for part in (counted_BT.detach(), loss_mask_BT))
    return counted_BT.sum(), tokens, report
