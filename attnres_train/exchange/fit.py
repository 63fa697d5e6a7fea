"""Whether a checkpoint of DeepSpeed's is of the configured model, and whole tensors from those of its tensor ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from attnres_train.engine.kinds import KINDS, Kind
from attnres_train.errors import Problem
from attnres_train.exchange.checkpoint import ZeroCheckpoint
from attnres_train.exchange.partitions import Shape
from attnres_train.model.sharding import Sharding

_CONFIGURATION = "give the configuration of the model that DeepSpeed trained"


def misfits(stored: Sequence[Mapping[str, Shape]], model: Mapping[str, Sharding]) -> Iterator[Problem]:
    """Parameters that are missing, unexpected or of another shape. `stored` has the shapes of every tensor rank,
    `model` says how the configured model would be cut over so many."""
    for rank, shapes in enumerate(stored):
        where = f" on tensor rank {rank}" if len(stored) > 1 else ""
        for name in sorted(shapes.keys() | model.keys()):
            if name not in shapes:
                yield Problem(name, f"the model has it, the checkpoint lacks it{where}", _CONFIGURATION)
            elif name not in model:
                yield Problem(name, f"the checkpoint has it{where}, the model does not know it", _CONFIGURATION)
            elif shapes[name] != (expected := model[name].local_shape(len(stored))):
                message = f"has shape {shapes[name]} in the checkpoint{where}, {expected} in the model"
                yield Problem(name, message, f"{_CONFIGURATION}: its sizes, vocabulary and padding")


def unequal_copies(checkpoint: ZeroCheckpoint, model: Mapping[str, Sharding]) -> list[str]:
    """Parameters that every tensor rank has whole and that are not the same on all of them."""
    first, *others = checkpoint.ranks
    return [
        name
        for name, sharding in model.items()
        if sharding.axis is None and any(not other.tensor(name, 0).equal(first.tensor(name, 0)) for other in others)
    ]


def whole_state(checkpoint: ZeroCheckpoint, name: str, sharding: Sharding) -> Iterator[tuple[Kind, Tensor]]:
    """The state of one logical tensor, views of the files wherever it lies in one piece."""
    for number, kind in enumerate(KINDS):
        yield kind, _whole([rank.tensor(name, number) for rank in checkpoint.ranks], sharding)


def _whole(parts: Sequence[Tensor], sharding: Sharding) -> Tensor:
    """Of what every tensor rank has whole, the first one's is taken."""
    if sharding.axis is None or tuple(parts[0].shape) == sharding.shape:
        return parts[0]
    before = (slice(None),) * sharding.axis
    cut = [(part, piece) for rank, part in enumerate(parts) for piece in sharding.pieces(rank, len(parts))]
    if len(cut) == 1:
        ((part, piece),) = cut
        return part[(*before, piece.local)]
    whole = torch.empty(sharding.shape, dtype=torch.float32)
    for part, piece in cut:
        whole[(*before, piece.logical)] = part[(*before, piece.local)]
    return whole
