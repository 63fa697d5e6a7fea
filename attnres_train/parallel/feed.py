"""Micro-batches on their way to the device: only what a rank's stages use, all queued before the first of them runs.

From pinned memory a copy blocks nobody, so that the host runs ahead of the device from the first forward of a step to
the end of its last backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from attnres_train.model.documents import Documents
from attnres_train.model.stage import StageRole


class MicroBatch(Protocol):
    """What the schedule needs of a micro-batch, on the host; every rank reads its own from the corpus."""

    @property
    def tokens_BT(self) -> Tensor: ...

    @property
    def labels_BT(self) -> Tensor: ...

    @property
    def loss_mask_BT(self) -> Tensor: ...

    @property
    def segments_BT(self) -> Tensor | None: ...


@dataclass(frozen=True)
class Fed:
    """A micro-batch as the stages of a rank take it: what none of them uses is still on the host."""

    tokens_BT: Tensor
    labels_BT: Tensor
    loss_mask_BT: Tensor
    documents: Documents | None


def feed(batches: Sequence[MicroBatch], roles: Sequence[StageRole], device: torch.device) -> list[Fed]:
    """`batches` for the stages of `roles`: tokens for the first stage, labels and mask for the last."""
    first, last = any(role.first for role in roles), any(role.last for role in roles)
    return [
        Fed(
            tokens_BT=on_device(batch.tokens_BT, device) if first else batch.tokens_BT,
            labels_BT=on_device(batch.labels_BT, device) if last else batch.labels_BT,
            loss_mask_BT=on_device(batch.loss_mask_BT, device) if last else batch.loss_mask_BT,
            documents=None if batch.segments_BT is None else _documents(batch.segments_BT, device),
        )
        for batch in batches
    ]


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy that the host does not wait for. torch keeps pinned memory until the copy is done, and uses it again."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def _documents(segments_BT: Tensor, device: torch.device) -> Documents:
    documents = Documents.of(segments_BT)
    return Documents(documents.lengths, on_device(documents.bounds, device))
