"""The losses of a checkpoint on corpora: by set, by position in the window, in nats and in bits a byte."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnres_train.config.run_config import RunConfig
from attnres_train.data.validation import ValidationData
from attnres_train.depth.describe import default_device_type
from attnres_train.evaluate.weights import open_on_all_ranks, read_into
from attnres_train.parallel.grid import build_grid, start_process_group, stop_process_group
from attnres_train.parallel.pipeline import Pipeline
from attnres_train.progress import LossSum
from attnres_train.setup import Setup
from attnres_train.trainer.build import build_stages
from attnres_train.trainer.evaluation import losses_of
from attnres_train.trainer.numerics import settle_numerics


@dataclass(frozen=True)
class Measured:
    """The loss on one set of samples, or on several."""

    loss: LossSum
    positions: Sequence[LossSum]
    """Of equal stretches of the window, first to last."""
    samples: int
    tokens_per_byte: float | None
    """Of the text; None where a corpus does not say."""

    @property
    def bits_per_byte(self) -> float | None:
        """None where nothing says how many bytes there were."""
        return None if self.tokens_per_byte is None else self.loss.mean / math.log(2) * self.tokens_per_byte


def together(measured: Sequence[Measured]) -> Measured:
    """All sets as one: means over their tokens. Pure."""
    total = LossSum()
    for one in measured:
        total = total.plus(one.loss)
    stretches = zip(*(one.positions for one in measured), strict=True)
    positions = []
    for parts in stretches:
        added = LossSum()
        for part in parts:
            added = added.plus(part)
        positions.append(added)
    per_byte = None
    if all(one.tokens_per_byte for one in measured):
        # Bytes add up, and so do tokens.
        text_bytes = sum(one.loss.tokens / one.tokens_per_byte for one in measured if one.tokens_per_byte)
        per_byte = total.tokens / text_bytes if text_bytes else None
    return Measured(total, positions, sum(one.samples for one in measured), per_byte)


def stretches_of(sequence_length: int, most: int = 8) -> int:
    """Into how many equal stretches a window is divided: as many as `most` that its length allows. Pure."""
    return next(count for count in range(min(most, sequence_length), 0, -1) if sequence_length % count == 0)


def measure(checkpoint: Path, config: RunConfig, sets: Mapping[str, ValidationData]) -> dict[str, Measured]:
    """The losses of the checkpoint on `sets`, in the layout of `config`, the same on every rank. A collective.

    Raises Refused where the checkpoint is damaged or of another model.
    """
    settle_numerics(config.training, default_device_type())
    start_process_group(config.parallel.timeout_seconds)
    try:
        grid = build_grid(config.parallel, config.training.seed)
        reader = open_on_all_ranks(checkpoint, grid)
        setup = Setup.of(config, grid.world_size)
        megatron, stages = build_stages(setup, grid)
        read_into(stages, reader, grid)
        pipeline = Pipeline(setup, grid, megatron, finalize=None)
        stretches = stretches_of(config.training.sequence_length)
        size = config.training.micro_batch_size
        found = losses_of(stages, pipeline, sets, size, lambda: False, stretches)
    finally:
        stop_process_group()
    assert found.losses is not None, "nobody asks to stop"
    return {
        name: Measured(found.losses[name], found.positions[name], len(data), data.tokens_per_byte)
        for name, data in sets.items()
    }
