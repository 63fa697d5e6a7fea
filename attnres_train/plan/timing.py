"""Seconds of a step: the work of `work.py` over the speeds of a machine, through the schedule of `simulate.py`.

    step = schedule (compute, tensor-parallel collectives, hops, waiting)
         + gradients over the data ranks + optimizer + weights over the data ranks

Ring collectives of r ranks move 2 (r - 1) / r of a tensor's bytes (all-reduce) or (r - 1) / r (the others) over the
slowest rank's link. Gradients are not reduced while backward runs (`engine/megatron.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from attnres_train.config.run_config import RunConfig
from attnres_train.model.size import embedding_parameters
from attnres_train.parallel.schedule import Schedule
from attnres_train.parallel.wire import WirePlan
from attnres_train.plan.memory import StageParameters
from attnres_train.plan.simulate import Costs, Played, play, play_long
from attnres_train.plan.speeds import Link, Machine, Rates
from attnres_train.plan.units import element_bytes, wire_slice_bytes
from attnres_train.plan.work import StageWork, Work, Worker

_FP32_BYTES = 4
ADAM_BYTES = 28
"""An element of AdamW: weight, gradient and both moments read, weight and moments written, fp32."""
NORM_AND_CLIP_BYTES = 12
"""The gradient read for the norm, read and written by the clipping."""
WHOLE_GRADIENT_BYTES = 12
"""The whole fp32 gradient filled with zeros, and divided by the count of tokens."""
OFFLOAD_BYTES_PER_SECOND = 10e9
"""Of an update in host memory, per rank: DeepSpeed's CPU Adam with its copies over PCIe; an assumption."""

KINDS = (
    "layers",
    "attention",
    "elements",
    "depth_mix",
    "head",
    "recompute",
    "gradient_sums",
    "host",
    "tensor_parallel",
    "data_parallel",
    "optimizer",
    "waiting",
)


Seconds = defaultdict[str, float]
"""By kind."""


def _counted(**kinds: float) -> Seconds:
    return defaultdict(float, kinds)


@dataclass(frozen=True)
class StageSeconds:
    """One visit of one micro-batch."""

    forward: float
    backward: float


@dataclass(frozen=True)
class TimePlan:
    """A step in seconds. `kinds` are those of the busiest pipeline rank and sum up to the step; `bubble_fraction` is
    the share of the schedule that all ranks together wait, for work or for messages."""

    device: str
    measured: bool
    assumptions: str
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
    """The times of one configuration on `world` ranks of `machine`."""

    def __init__(
        self,
        config: RunConfig,
        padded_vocabulary: int,
        wire: WirePlan,
        parameters: tuple[StageParameters, ...],
        micro_batches: int,
        world: int,
        machine: Machine,
    ):
        self.config, self.padded, self.wire, self.parameters = config, padded_vocabulary, wire, parameters
        self.micro_batches, self.world, self.machine = micro_batches, world, machine
        self.parallel, self.data = config.parallel, config.parallel.data(world)
        self.rates: Rates = machine.rates(world)
        self.inside = self.parallel.tensor * self.data
        """Ranks between a rank and the next of its pipeline: tensor ranks lie together, then data ranks."""

    @cached_property
    def work(self) -> tuple[StageWork, ...]:
        return Worker(self.config, self.padded, self.wire, self.parameters).stages()

    def least_seconds(self) -> float:
        """Less than any step: the work of the model shared out evenly, and the bubble of equal stages."""
        work = Worker(self.config, self.padded, self.wire, self.parameters).least()
        visit = sum(self._seconds(work).values()) / self.parallel.pipeline
        return visit * (self.micro_batches + (self.parallel.pipeline - 1) / self.parallel.virtual)

    @cached_property
    def visits(self) -> tuple[tuple[Seconds, Seconds], ...]:
        """Of each stage: seconds of its forward and of its backward, by kind."""
        return tuple((self._seconds(w.forward), self._backward(w)) for w in self.work)

    @cached_property
    def schedule(self) -> Schedule:
        group = self.parallel.micro_batch_group or self.parallel.pipeline
        return Schedule(self.parallel.pipeline, self.parallel.virtual, self.micro_batches, group)

    def played(self, whole: bool = False) -> Played:
        """The schedule; `whole` plays every micro-batch, for a picture."""
        return (play if whole else play_long)(self.schedule, self.wire, self.costs)

    @cached_property
    def costs(self) -> Costs:
        stages = range(self.wire.num_stages)
        size = wire_slice_bytes(self.config)
        links = [self._hop_link(stage) for stage in stages]
        eager = not self.machine.asynchronous if self.parallel.eager is None else self.parallel.eager

        def seconds(slices: int, stage: int) -> float:
            return slices * size / links[stage].send_bytes_per_second

        hops = [None, *self.wire.hops()]
        return Costs(
            forward=tuple(sum(forward.values()) for forward, _ in self.visits),
            backward=tuple(sum(backward.values()) for _, backward in self.visits),
            forward_hops=tuple(seconds(hop.slices, hop.to_stage) if hop else 0.0 for hop in hops),
            backward_hops=tuple(seconds(hop.slices_back, hop.to_stage) if hop else 0.0 for hop in hops),
            early_shares=tuple(self._early_share(stage) if eager and stage else 0.0 for stage in stages),
            latencies=tuple(link.send_latency_seconds for link in links),
            ahead=eager or (self.parallel.overlap and self.parallel.virtual > 1),
        )

    def plan(self, flops_per_step: float, checkpoint_bytes: int) -> TimePlan:
        """Everything, for a run that saves `checkpoint_bytes`."""
        played = self.played()
        reduce = [self._reduce_seconds(rank) for rank in range(self.wire.pipeline)]
        update = [self._update_seconds(rank) for rank in range(self.wire.pipeline)]
        gather = [self._gather_seconds(rank) for rank in range(self.wire.pipeline)]
        # The norm of the gradient makes all ranks meet between the reduction and the update.
        reduced = max(finish + seconds for finish, seconds in zip(played.finish, reduce, strict=True))
        step = reduced + max(a + b for a, b in zip(update, gather, strict=True))
        busiest = max(range(self.wire.pipeline), key=lambda rank: played.busy[rank] + reduce[rank] + update[rank])
        kinds = self._kinds_of(busiest)
        kinds["data_parallel"] = reduce[busiest] + gather[busiest]
        kinds["optimizer"] = update[busiest]
        kinds["waiting"] = step - sum(kinds.values())
        training = self.config.training
        tokens = training.global_batch_size * training.sequence_length
        nodes = -(-self.world // self.machine.devices_per_node)
        return TimePlan(
            device=self.machine.name,
            measured=self.machine.measured,
            assumptions=self.machine.assumptions,
            step_seconds=step,
            schedule_seconds=played.seconds,
            bubble_fraction=played.bubble_fraction,
            busiest_rank=busiest,
            kinds={kind: kinds[kind] for kind in KINDS},
            stages=tuple(StageSeconds(f, b) for f, b in zip(self.costs.forward, self.costs.backward, strict=True)),
            tokens_per_second=tokens / step,
            model_flops_utilisation=flops_per_step / (step * self.world * self.machine.peak_flops_per_second),
            run_hours=training.steps * step / 3600,
            device_hours=training.steps * step * self.world / 3600,
            checkpoint_seconds=checkpoint_bytes / (nodes * self.machine.disk_bytes_per_second),
        )

    def _kinds_of(self, rank: int) -> Seconds:
        kinds = _counted(**dict.fromkeys(KINDS, 0.0))
        for stage in self.wire.stages_of(rank):
            for direction in self.visits[stage]:
                for kind, seconds in direction.items():
                    kinds[kind] += self.micro_batches * seconds
        return kinds

    def _backward(self, work: StageWork) -> Seconds:
        own, again = self._seconds(work.backward), self._seconds(work.again)
        crossing = again.pop("tensor_parallel", 0.0)
        own["tensor_parallel"] += crossing
        own["recompute"] += sum(again.values())
        return own

    def _seconds(self, work: Work) -> Seconds:
        rates = self.rates
        seconds = _counted(
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
        ranks = self.parallel.tensor
        link = self.machine.near if ranks <= self.machine.devices_per_node else self.machine.far
        ring = (ranks - 1) / ranks
        return (
            2 * ring * work.all_reduce_bytes / link.all_reduce_bytes_per_second
            + ring * work.reduce_scatter_bytes / link.reduce_scatter_bytes_per_second
            + ring * work.all_gather_bytes / link.all_gather_bytes_per_second
            + work.collectives * link.collective_latency_seconds
        )

    def _hop_link(self, stage: int) -> Link:
        """The link that leads into `stage`."""
        if stage == 0:
            return self.machine.near
        ranks = (self.wire.rank_of(stage - 1), self.wire.rank_of(stage))
        nodes = {rank * self.inside // self.machine.devices_per_node for rank in ranks}
        crosses = len(nodes) > 1 or self.inside > self.machine.devices_per_node
        return self.machine.far if crosses else self.machine.near

    def _data_rate(self, near: float, far: float) -> float:
        """Bus rate of a ring of the data ranks: every rank of a node brings its own share of the network."""
        if self.inside <= self.machine.devices_per_node:
            return near
        return min(near, far * max(1, self.machine.devices_per_node // self.parallel.tensor))

    def _held(self, rank: int) -> int:
        return sum(self.parameters[s].held(self.parallel.tensor) for s in self.wire.stages_of(rank))

    def _reduce_seconds(self, rank: int) -> float:
        """Of the gradients: over the data ranks, and of a tied table over the two ends of the pipeline."""
        near, far = self.machine.near, self.machine.far
        seconds = 0.0
        if self.data > 1:
            rate = self._data_rate(near.reduce_scatter_bytes_per_second, far.reduce_scatter_bytes_per_second)
            seconds += self._reductions * _FP32_BYTES * self._held(rank) * self._ring / rate
            seconds += near.collective_latency_seconds
        if self.config.model.tie_embeddings and self.wire.pipeline > 1 and rank in (0, self.wire.pipeline - 1):
            table = embedding_parameters(self.config.model, self.padded) // self.parallel.tensor
            link = self._hop_link(self.wire.num_stages - 1)
            seconds += _FP32_BYTES * table / link.all_reduce_bytes_per_second
        return seconds

    def _gather_seconds(self, rank: int) -> float:
        """Of the new weights over the data ranks."""
        if self.data == 1:
            return 0.0
        near, far = self.machine.near, self.machine.far
        rate = self._data_rate(near.all_gather_bytes_per_second, far.all_gather_bytes_per_second)
        weights = element_bytes(self.config) * self._held(rank)
        return self._gathers * weights * self._ring / rate + near.collective_latency_seconds

    @property
    def _ring(self) -> float:
        return (self.data - 1) / self.data

    @property
    def _zero_stage(self) -> int:
        return self.config.engine.deepspeed.zero_stage if self.config.engine.kind == "deepspeed" else 1

    @property
    def _reductions(self) -> int:
        """ZeRO-2 and ZeRO-3 reduce the gradients of every micro-batch."""
        return self.micro_batches if self._zero_stage > 1 else 1

    @property
    def _gathers(self) -> int:
        """ZeRO-3 gathers the weights for every forward and every backward."""
        return 2 * self.micro_batches if self._zero_stage > 2 else 1

    def _update_seconds(self, rank: int) -> float:
        held = self._held(rank)
        copied = 0 if self.config.training.precision == "fp32" else _FP32_BYTES + element_bytes(self.config)
        own = held / self.data * (ADAM_BYTES + NORM_AND_CLIP_BYTES + copied)
        offloaded = self.config.engine.kind == "deepspeed" and self.config.engine.deepspeed.offload_optimizer
        rate = OFFLOAD_BYTES_PER_SECOND if offloaded else self.rates.optimizer_bytes_per_second
        return own / rate + held * WHOLE_GRADIENT_BYTES / self.rates.memory_bytes_per_second

    def _early_share(self, stage: int) -> float:
        """Of the history into `stage`: what is complete before the last layers of the stage before have run."""
        hop, sender = self.wire.hop_into(stage), stage - 1
        if not hop.slices or not self.wire.layers_per_stage[sender]:
            return 0.0
        complete = self.wire.layout.sources_before(self.wire.first_sublayer(stage) - 2)
        return sum(source < complete for source in hop.sources) / hop.slices
