"""Seconds of a step: the work of `work.py` over the speeds of a machine, through the schedule of `simulate.py`.

    step = schedule (compute, tensor-parallel collectives, hops, waiting)
         + gradients over the data ranks + optimizer + weights over the data ranks

Ring collectives of r ranks move 2 (r - 1) / r of a tensor's bytes (all-reduce) or (r - 1) / r (the others) over the
slowest rank's link. What follows the schedule is in `step_end.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from attnres_train.plan.checkpoint import plan_checkpoint
from attnres_train.plan.simulate import Played, TurnSeconds, play, play_long
from attnres_train.plan.speeds import Links, Machine, Rates
from attnres_train.plan.step_end import EndSeconds, end_seconds
from attnres_train.plan.work import StageWork, Work, Worker
from attnres_train.setup import Setup

TIME_KINDS = (
    *("layers", "attention", "elements", "depth_mix", "head", "recompute", "gradient_sums", "host"),
    *("tensor_parallel", "data_parallel", "optimizer", "waiting"),
)
Seconds = defaultdict[str, float]
"""By kind."""


@dataclass(frozen=True)
class StageSeconds:
    """One visit of one micro-batch."""

    forward: float
    backward: float


@dataclass(frozen=True)
class TimePlan:
    """A step in seconds. `kinds` are those of the busiest pipeline rank and sum up to the step; `bubble_fraction` is
    the share of the schedule that all ranks together wait, for work or for messages."""

    step_seconds: float
    schedule_seconds: float
    bubble_fraction: float
    busiest_rank: int
    kinds: Mapping[str, float]
    stages: tuple[StageSeconds, ...]
    tokens_per_second: float
    model_flops_utilisation: float
    run_hours: float
    device_hours: float
    checkpoint_seconds: float


class Timing:
    """The times of one setup on `machine`."""

    def __init__(self, setup: Setup, machine: Machine):
        self.setup, self.config, self.wire, self.machine = setup, setup.config, setup.wire, machine
        self.parallel, self.micro_batches = setup.config.parallel, setup.micro_batches
        self.rates: Rates = machine.rates(setup.world)
        self.links = Links(machine, self.wire, self.parallel.tensor, setup.data)

    @cached_property
    def work(self) -> tuple[StageWork, ...]:
        return Worker(self.setup).stages()

    def evenly_seconds(self) -> float:
        """An estimate of the schedule without its stages: the work of the model shared out evenly, and the bubble of
        equal stages. A step of uneven ones may be shorter."""
        return self._even_visit * (self.micro_batches + (self.parallel.pipeline - 1) / self.parallel.virtual)

    def least_seconds_of_any_split(self) -> float:
        """No step is shorter, however the layers are split: one rank has its share of the work or more."""
        return self._even_visit * self.micro_batches

    def least_seconds(self) -> float:
        """No step of this split is shorter. Every rank has its own work to do, after the first micro-batch came to it
        through the stages before it and before the gradients of the last have gone back through them."""
        costs, before = self.costs, [0.0]
        for stage in range(1, self.wire.pipeline):
            hops = costs.forward_hops[stage] * (1 - costs.early_shares[stage]) + costs.backward_hops[stage]
            before.append(before[-1] + costs.forward[stage - 1] + costs.backward[stage - 1] + hops)
        visits = [a + b for a, b in zip(costs.forward, costs.backward, strict=True)]
        of_ranks = (sum(visits[stage] for stage in self.wire.stages_of(rank)) for rank in range(self.wire.pipeline))
        return self._with_end([start + self.micro_batches * own for start, own in zip(before, of_ranks, strict=True)])

    @cached_property
    def _even_visit(self) -> float:
        """Of a micro-batch on each rank, were the work of the model shared out evenly."""
        work = Worker(self.setup).least()
        return sum(self._seconds(work).values()) / self.parallel.pipeline

    @cached_property
    def visits(self) -> tuple[tuple[Seconds, Seconds], ...]:
        """Of each stage: seconds of its forward and of its backward, by kind."""
        return tuple((self._seconds(w.forward), self._backward(w)) for w in self.work)

    def played_whole(self, micro_batches: int) -> Played:
        """The schedule of so many, every one played, for a picture."""
        return play(self.setup.schedule_of(micro_batches), self.wire, self.costs)

    @cached_property
    def costs(self) -> TurnSeconds:
        stages, size = range(self.wire.num_stages), self.setup.slice_bytes
        links = [self.links.into(stage) for stage in stages]
        eager = not self.machine.asynchronous if self.parallel.eager is None else self.parallel.eager

        def seconds(slices: list[int]) -> tuple[float, ...]:
            return 0.0, *(n * size / link.send_bytes_per_second for n, link in zip(slices, links[1:], strict=True))

        hops = self.wire.hops()
        return TurnSeconds(
            forward=tuple(sum(forward.values()) for forward, _ in self.visits),
            backward=tuple(sum(backward.values()) for _, backward in self.visits),
            forward_hops=seconds([hop.slices for hop in hops]),
            backward_hops=seconds([hop.slices_back for hop in hops]),
            early_shares=tuple(self._early_share(stage) if eager and stage else 0.0 for stage in stages),
            latencies=tuple(link.send_latency_seconds for link in links),
            ahead=eager or (self.parallel.overlap and self.parallel.virtual > 1),
        )

    def plan(self) -> TimePlan:
        """Everything."""
        played = play_long(self.setup.schedule, self.wire, self.costs)
        step, end = self._with_end(played.finish), self.end
        work = [busy + after.reduce + after.update for busy, after in zip(played.busy, end, strict=True)]
        busiest = work.index(max(work))
        kinds = self._kinds_of(busiest)
        kinds["data_parallel"] = end[busiest].reduce + end[busiest].gather
        kinds["optimizer"] = end[busiest].update
        kinds["waiting"] = step - sum(kinds.values())
        training, world = self.config.training, self.setup.world
        nodes = -(-world // self.machine.devices_per_node)
        return TimePlan(
            step_seconds=step,
            schedule_seconds=played.seconds,
            bubble_fraction=played.bubble_fraction,
            busiest_rank=busiest,
            kinds={kind: kinds[kind] for kind in TIME_KINDS},
            stages=tuple(StageSeconds(f, b) for f, b in zip(self.costs.forward, self.costs.backward, strict=True)),
            tokens_per_second=self.setup.step_tokens / step,
            model_flops_utilisation=self.setup.step_flops / (step * world * self.machine.peak_flops_per_second),
            run_hours=training.steps * step / 3600,
            device_hours=training.steps * step * world / 3600,
            checkpoint_seconds=plan_checkpoint(self.setup).total_bytes / (nodes * self.machine.disk_bytes_per_second),
        )

    @cached_property
    def end(self) -> tuple[EndSeconds, ...]:
        """Of each pipeline rank, after its last turn."""
        ranks = range(self.wire.pipeline)
        return tuple(end_seconds(self.setup, self.links, self.rates, rank) for rank in ranks)

    def _with_end(self, finish: Sequence[float]) -> float:
        """Of a step whose ranks have done their last turns at `finish`."""
        # The norm of the gradient makes all ranks meet between the reduction and the update.
        reduced = max(done + end.reduce for done, end in zip(finish, self.end, strict=True))
        return reduced + max(end.update + end.gather for end in self.end)

    def _kinds_of(self, rank: int) -> Seconds:
        kinds: Seconds = defaultdict(float, dict.fromkeys(TIME_KINDS, 0.0))
        for stage in self.wire.stages_of(rank):
            for direction in self.visits[stage]:
                for kind, seconds in direction.items():
                    kinds[kind] += self.micro_batches * seconds
        return kinds

    def _backward(self, work: StageWork) -> Seconds:
        own, again = self._seconds(work.backward), self._seconds(work.again)
        own["tensor_parallel"] += again.pop("tensor_parallel")
        own["recompute"] += sum(again.values())
        return own

    def _seconds(self, work: Work) -> Seconds:
        rates = self.rates
        seconds: Seconds = defaultdict(
            float,
            layers=work.layer_flops / rates.matmul_flops_per_second,
            attention=work.attention_flops / rates.attention_flops_per_second,
            head=work.head_flops / rates.head_flops_per_second + work.head_bytes / rates.softmax_bytes_per_second,
            depth_mix=work.depth_bytes / rates.depth_bytes_per_second,
            elements=work.element_bytes / rates.memory_bytes_per_second,
            gradient_sums=work.gradient_bytes / rates.memory_bytes_per_second,
        )
        host = work.operations * rates.operation_seconds
        # A host that runs ahead of its device costs only what the device does not take anyway.
        seconds["host"] = max(0.0, host - sum(seconds.values())) if self.machine.asynchronous else host
        seconds["tensor_parallel"] = self._tensor_seconds(work)
        return seconds

    def _tensor_seconds(self, work: Work) -> float:
        ranks, link = self.parallel.tensor, self.links.between_tensor_ranks()
        ring = (ranks - 1) / ranks
        return (
            2 * ring * work.all_reduce_bytes / link.all_reduce_bytes_per_second
            + ring * work.reduce_scatter_bytes / link.reduce_scatter_bytes_per_second
            + ring * work.all_gather_bytes / link.all_gather_bytes_per_second
            + work.collectives * link.collective_latency_seconds
        )

    def _early_share(self, stage: int) -> float:
        """Of the history into `stage`: what is complete before the last layers of the stage before have run."""
        hop, sender = self.wire.hop_into(stage), stage - 1
        if not hop.slices or not self.wire.layers_per_stage[sender]:
            return 0.0
        complete = self.wire.layout.sources_before(self.wire.first_sublayer(stage) - 2)
        return sum(source < complete for source in hop.sources) / hop.slices
