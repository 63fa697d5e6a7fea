"""What is kept of every tensor of the model: one function, for engines, checkpoints and the plan. No torch here."""

from __future__ import annotations

from typing import NamedTuple

from attnres_train.model.tensors import TensorSpec


class Kind(NamedTuple):
    """One of the tensors that are the state of a parameter or of a buffer, each fp32 and of its shape."""

    words: str
    stored: str
    """Before the name of the parameter in a checkpoint: `first_moment/head.norm.weight`."""
    slot: str = ""
    """What torch's AdamW, which both engines run, calls a moment."""


MASTER = Kind("master", "weight")
MOMENTS = (
    Kind("first moment", "first_moment", "exp_avg"),
    Kind("second moment", "second_moment", "exp_avg_sq"),
)
BUFFER = Kind("buffer", "buffer")
AVERAGE = Kind("average", "average")
"""Of the masters, where `optimizer.average_decay` keeps one."""
KINDS = (MASTER, *MOMENTS)
"""Of a parameter that AdamW trains."""


def kinds_of(spec: TensorSpec, averages: bool = False) -> tuple[Kind, ...]:
    """What is kept of the tensor, the master first. Who adds an optimizer with other moments lets it choose here."""
    if spec.buffer:
        return (BUFFER,)
    return (*KINDS, AVERAGE) if averages else KINDS
