"""What crosses the stages of a run, in bytes: every hop, every rank, a whole step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from attnres_train.parallel.wire import Hop, WirePlan
from attnres_train.setup import Setup


@dataclass(frozen=True)
class RankTraffic:
    """One tensor rank of a pipeline rank: what it sends of a micro-batch, and the most it keeps in a step."""

    rank: int
    forward_bytes: int
    backward_bytes: int
    kept_slices: int
    """Slices of the depth history at once, received or made here, over all micro-batches in flight."""
    kept_bytes: int


@dataclass(frozen=True)
class TrafficPlan:
    """Hops in bytes of one micro-batch on one tensor rank; a step's totals are over all ranks."""

    plan: WirePlan
    slice_bytes: int
    ranks: tuple[RankTraffic, ...]
    step_forward_bytes: int
    step_backward_bytes: int

    @property
    def step_bytes(self) -> int:
        return self.step_forward_bytes + self.step_backward_bytes

    @property
    def bytes_total(self) -> int:
        """Forward bytes of one micro-batch over all hops."""
        return self.plan.slices_total * self.slice_bytes

    def as_json(self) -> dict[str, Any]:
        plan, size = self.plan, self.slice_bytes
        return {
            "history_cache": "on" if plan.cache else "off",
            "exact_gradients": plan.exact_gradients or not plan.cache,
            "hops": [_hop_json(hop, size) for hop in plan.hops()],
            **{name: getattr(plan, name) for name in ("slices_total", "slices_max", "slices_standard")},
            "slices_whole_prefix": replace(plan, cache=False, exact_gradients=False).slices_total,
            "slices_back_total": plan.slices_back_total,
            "bytes_total": self.bytes_total,
            "bytes_back_total": plan.slices_back_total * size,
            "step_forward_bytes": self.step_forward_bytes,
            "step_backward_bytes": self.step_backward_bytes,
            "ranks": [asdict(rank) for rank in self.ranks],
        }


def _hop_json(hop: Hop, size: int) -> dict[str, Any]:
    of_sources = {"sources": list(hop.sources), "partial": hop.partial, "slices": hop.slices}
    back = {"returned": list(hop.returned), "bytes_back": hop.slices_back * size}
    return {"from": hop.from_stage, "to": hop.to_stage, **of_sources, "bytes": hop.slices * size, **back}


def plan_traffic(setup: Setup) -> TrafficPlan:
    """The traffic of a step."""
    wire = setup.wire
    copies = setup.slice_bytes * setup.micro_batches * setup.data * setup.config.parallel.tensor
    ranks = tuple(_rank(setup, rank) for rank in range(wire.pipeline))
    return TrafficPlan(wire, setup.slice_bytes, ranks, wire.slices_total * copies, wire.slices_back_total * copies)


def _rank(setup: Setup, rank: int) -> RankTraffic:
    wire, size = setup.wire, setup.slice_bytes
    forward = sum(hop.slices for hop in wire.hops() if wire.rank_of(hop.from_stage) == rank)
    back = sum(hop.slices_back for hop in wire.hops() if wire.rank_of(hop.to_stage) == rank)
    kept = [wire.kept_slices(stage) for stage in wire.stages_of(rank)] if wire.num_stages > 1 else [0]
    standing = setup.schedule_to_peak.at_peak(rank, kept)
    slices = sum(count * each for count, each in zip(standing.in_flight, kept, strict=True))
    return RankTraffic(rank, forward * size, back * size, slices, slices * size)
