"""What is kept of every parameter, in one table that engines, checkpoints and the plan read. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Kind(NamedTuple):
    """One of the tensors that are the state of a parameter, each fp32 and of its shape."""

    attribute: str
    """Of `OptimizerState`."""
    stored: str
    """Before the name of the parameter in a checkpoint: `first_moment/head.norm.weight`."""
    slot: str
    """What torch's AdamW, which both engines run, calls it; `param` is the fp32 master itself."""

    @property
    def words(self) -> str:
        return self.attribute.replace("_", " ")

    def of(self, state: Any) -> Tensor:
        """This tensor of an `OptimizerState`."""
        tensor: Tensor = getattr(state, self.attribute)
        return tensor


MASTER = Kind("master", "weight", "param")
MOMENTS = (
    Kind("first_moment", "first_moment", "exp_avg"),
    Kind("second_moment", "second_moment", "exp_avg_sq"),
)
KINDS = (MASTER, *MOMENTS)
"""In the order of the fields of `OptimizerState`."""
