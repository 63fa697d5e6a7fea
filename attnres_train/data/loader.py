"""The batches of a step on one data rank.

Shape letters: B samples of a micro-batch, T tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from attnres_train.data.corpus import Sample, TrainingData
from attnres_train.data.validation import ValidationData

PADDING_ID = "padding"
"""The sample id of a place in a validation batch that only fills it up; its loss mask is 0."""


class Batch(NamedTuple):
    """One micro-batch of one data rank: token `labels_BT[b, t]` follows `tokens_BT[b, t]`."""

    tokens_BT: torch.Tensor
    """int64"""
    labels_BT: torch.Tensor
    """int64"""
    loss_mask_BT: torch.Tensor
    """float32: 1 where the label counts, else 0"""
    sample_ids: tuple[str, ...]
    segments_BT: torch.Tensor | None = None
    """int32: the number of each token's document in its sample; None where attention crosses documents"""
    sources: tuple[int, ...] = ()
    """The number in the blend of each sample's source."""


def collate(samples: Sequence[Sample]) -> Batch:
    """Samples [T + 1] to one batch [B, T]; every label counts."""
    windows = torch.from_numpy(np.stack([sample.tokens for sample in samples]))
    tokens, labels = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
    ids = tuple(sample.sample_id for sample in samples)
    numbers = [sample.segments for sample in samples if sample.segments is not None]
    segments = torch.from_numpy(np.stack(numbers)) if numbers else None
    mask = torch.ones(tokens.shape, dtype=torch.float32)
    return Batch(tokens, labels, mask, ids, segments, tuple(sample.source for sample in samples))


class BatchLoader:
    """Cuts a step's `global_batch_size` positions into micro-batches for one of `data_ranks` ranks.

    Micro-batch m of rank r holds the positions consumed + m micro ranks + r micro + (0 .. micro - 1), so a
    step takes the same samples whatever the micro-batch size and rank count. Nothing is kept between steps.

    Raises ValueError for sizes that do not divide.
    """

    def __init__(
        self, data: TrainingData, global_batch_size: int, micro_batch_size: int, data_rank: int, data_ranks: int
    ):
        if global_batch_size % (micro_batch_size * data_ranks):
            sizes = f"micro-batch {micro_batch_size} x {data_ranks} data ranks"
            raise ValueError(f"global batch {global_batch_size} is no multiple of {sizes}")
        self.data = data
        self.micro_batch_size = micro_batch_size
        self.data_rank = data_rank
        self.data_ranks = data_ranks
        self.num_micro_batches = global_batch_size // (micro_batch_size * data_ranks)

    def step(self, consumed_samples: int) -> list[Batch]:
        """The micro-batches of the step that begins when `consumed_samples` were consumed by all ranks."""
        shape = (self.num_micro_batches, self.data_ranks, self.micro_batch_size)
        positions = consumed_samples + np.arange(np.prod(shape)).reshape(shape)
        samples = self.data.samples(positions[:, self.data_rank].reshape(-1))
        size = self.micro_batch_size
        return [collate(samples[start : start + size]) for start in range(0, len(samples), size)]


def validation_batches(data: ValidationData, micro_batch_size: int, data_rank: int, data_ranks: int) -> Iterator[Batch]:
    """The whole validation set once over all ranks: as many full batches on every rank.

    Places past the end of the set repeat its first sample with loss mask 0 and the sample id PADDING_ID.
    """
    stride = micro_batch_size * data_ranks
    for start in range(data_rank * micro_batch_size, -(-len(data) // stride) * stride, stride):
        positions = np.arange(start, start + micro_batch_size)
        real = positions < len(data)
        batch = collate(data.samples(np.where(real, positions, 0)))
        ids = tuple(name if keep else PADDING_ID for name, keep in zip(batch.sample_ids, real, strict=True))
        mask = batch.loss_mask_BT * torch.from_numpy(real).to(torch.float32)[:, None]
        yield batch._replace(loss_mask_BT=mask, sample_ids=ids)
