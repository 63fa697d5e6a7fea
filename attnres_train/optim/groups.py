"""Which parameters decay: as the module that owns each has stated, whatever its shape."""

from __future__ import annotations

from torch import nn


def decays(parameter: nn.Parameter) -> bool:
    """What the owner of `parameter` has written as its attribute `decays`.

    Nothing follows from the number of dimensions: static logits are a matrix and no map, a norm's gain of two axes
    would be none either. Raises ValueError where no owner has said it.
    """
    stated = getattr(parameter, "decays", None)
    if stated is None:
        raise ValueError(f"nobody has stated whether a parameter of shape {tuple(parameter.shape)} decays")
    return bool(stated)
