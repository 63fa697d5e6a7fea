"""Which link ranks talk over: inside a node, or between nodes.

Tensor ranks lie together, then data ranks, then pipeline ranks: the order in which megatron-core numbers them.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnres_train.parallel.wire import WirePlan
from attnres_train.plan.speeds import Link, Machine


@dataclass(frozen=True)
class Links:
    """Of the ranks of a setup on a machine."""

    machine: Machine
    wire: WirePlan
    tensor: int
    data: int

    @property
    def inside(self) -> int:
        """Ranks between a rank and the next of its pipeline."""
        return self.tensor * self.data

    def between_tensor_ranks(self) -> Link:
        inside_a_node = self.tensor <= self.machine.devices_per_node
        return self.machine.near_of(self.tensor) if inside_a_node else self.machine.far

    def between_data_ranks(self) -> tuple[Link, Link]:
        """The link of a data rank to those in its node, and to those in others."""
        in_node = min(self.data, max(1, self.machine.devices_per_node // self.tensor))
        return self.machine.near_of(in_node), self.machine.far

    def into(self, stage: int) -> Link:
        """The link that leads into `stage`."""
        near = self.machine.near_of(2)
        if stage == 0:
            return near
        node, ranks = self.machine.devices_per_node, (self.wire.rank_of(stage - 1), self.wire.rank_of(stage))
        # A micro-batch of one replica may stay inside a node while another's crosses: the slowest sets the pace.
        here, there = (range(rank * self.inside, (rank + 1) * self.inside) for rank in ranks)
        crosses = any(a // node != b // node for a, b in zip(here, there, strict=True))
        return self.machine.far if crosses else near

    def data_rate(self, near: float, far: float) -> float:
        """Bus rate of a ring of the data ranks, of those inside a node and between nodes: every rank of a node brings
        its own share of the network."""
        if self.inside <= self.machine.devices_per_node:
            return near
        return min(near, far * max(1, self.machine.devices_per_node // self.tensor))
