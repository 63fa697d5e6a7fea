"""Which parameters decay."""

from __future__ import annotations

from torch import Tensor


def decays(parameter: Tensor) -> bool:
    """Matrices decay; vectors (norm and key gains, depth queries) do not.

    A depth query is one-dimensional for this reason too: stored as `[1, D]` it would be taken for a matrix.
    """
    return parameter.ndim >= 2
