"""What a configuration amounts to, before any rank starts: parameters, stages, wire, memory, steps, rates."""

from __future__ import annotations

from dataclasses import dataclass

from attnres_train.config.resolve import num_micro_batches, resolved_split, vocabulary_size, wire_plan
from attnres_train.config.run_config import RunConfig
from attnres_train.depth.layout import DepthLayout
from attnres_train.model.describe import describe
from attnres_train.model.size import training_flops_per_token
from attnres_train.optim.schedule import learning_rate
from attnres_train.parallel.split import rank_and_chunk
from attnres_train.parallel.wire import WirePlan
from attnres_train.plan.checkpoint import CheckpointPlan, plan_checkpoint
from attnres_train.plan.memory import MemoryPlan, StageParameters, stage_parameters, worst_rank_memory
from attnres_train.plan.speeds import Machine
from attnres_train.plan.timing import TimePlan, Timing
from attnres_train.plan.traffic import Traffic, plan_traffic
from attnres_train.plan.units import GIB
from attnres_train.plan.work import Worker

_RATES_SHOWN = 10
RESERVED_SHARE = 0.1
"""Of a device's memory, for what a plan does not count: the allocator's fragments, the CUDA context, NCCL. An
assumption."""


@dataclass(frozen=True)
class StagePlan:
    """One global pipeline stage. `parameters` counts each parameter of the model once over all stages."""

    rank: int
    chunk: int
    first_layer: int
    layers: int
    parameters: int


@dataclass(frozen=True)
class Grid:
    """Degrees of the process grid; `world` is their product without `virtual`."""

    world: int
    tensor: int
    pipeline: int
    virtual: int
    data: int
    sequence: bool


@dataclass(frozen=True)
class Plan:
    """All numbers are of the whole run or of one step, never of one rank, unless the name says so.

    `parameters_per_rank` is what a rank of each pipeline position holds, copies included; `bubble_fraction`
    the share of a step in which a rank waits, were all stages equal; `flops_per_step` counts model FLOPs, attention
    over whole windows: with `isolate_documents` an upper bound.
    """

    grid: Grid
    layout: DepthLayout
    parameters_total: int
    parameters_per_rank: tuple[int, ...]
    vocabulary: int
    padded_vocabulary: int
    stages: tuple[StagePlan, ...]
    global_batch_size: int
    micro_batch_size: int
    micro_batches: int
    sequence_length: int
    steps: int
    flops_per_step: float
    isolate_documents: bool
    bubble_fraction: float
    learning_rates: tuple[float, ...]
    wire: Traffic
    tensor_bytes: float
    """That the tensor ranks of the busiest pipeline rank reduce in a step; 0 without tensor parallelism."""
    memory: MemoryPlan
    checkpoint: CheckpointPlan
    time: TimePlan | None = None
    """None where no device was named."""
    machine: Machine | None = None

    @property
    def fits(self) -> bool | None:
        """Whether the fullest rank's tensors fit the device with a reserve; None where no device was named."""
        return None if self.machine is None else self.memory.total <= usable_bytes(self.machine)

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.sequence_length


def plan(
    config: RunConfig,
    world_size: int | None = None,
    vocabulary: int | None = None,
    machine: Machine | None = None,
) -> Plan:
    """The plan of a checked configuration on `world_size` ranks; None stands for one replica of the model.

    `vocabulary` is the number of entries of the tokenizer; None asks `vocabulary_size`, which may read it. With a
    `machine` it has the seconds of a step on it.

    Raises Refused where the vocabulary cannot be known.
    """
    model, parallel, training = config.model, config.parallel, config.training
    world = parallel.model_ranks if world_size is None else world_size
    entries = vocabulary_size(config) if vocabulary is None else vocabulary
    padded = model.padded_vocabulary(entries, parallel.tensor)
    wire = wire_plan(config, resolved_split(config, entries))
    parameters = stage_parameters(config, padded, wire)
    micro_batches, data = num_micro_batches(config, world), parallel.data(world)
    flops_per_token = training_flops_per_token(model, padded, training.sequence_length)
    flops_per_step = flops_per_token * training.global_batch_size * training.sequence_length
    time = None
    checkpoint = plan_checkpoint(config, entries, padded, wire, world)
    if machine is not None:
        timing = Timing(config, padded, wire, parameters, micro_batches, world, machine)
        time = timing.plan(flops_per_step, checkpoint.total_bytes)
    return Plan(
        grid=Grid(world, parallel.tensor, parallel.pipeline, parallel.virtual, data, parallel.sequence),
        layout=wire.layout,
        parameters_total=describe(model, config.residual, entries, padded).parameters,
        parameters_per_rank=_per_rank(parameters, wire, parallel.tensor),
        vocabulary=entries,
        padded_vocabulary=padded,
        stages=_stages(parameters, wire),
        global_batch_size=training.global_batch_size,
        micro_batch_size=training.micro_batch_size,
        micro_batches=micro_batches,
        sequence_length=training.sequence_length,
        steps=training.steps,
        flops_per_step=flops_per_step,
        isolate_documents=config.data.isolate_documents,
        bubble_fraction=bubble_fraction(parallel.pipeline, parallel.virtual, micro_batches),
        learning_rates=_first_rates(config),
        wire=plan_traffic(config, wire, micro_batches, data),
        tensor_bytes=Worker(config, padded, wire, parameters).tensor_bytes() * micro_batches,
        memory=worst_rank_memory(config, padded, wire, micro_batches, data),
        checkpoint=checkpoint,
        time=time,
        machine=machine,
    )


def usable_bytes(machine: Machine) -> float:
    """Of a device's memory, for tensors."""
    return machine.memory_gib * GIB * (1 - RESERVED_SHARE)


def bubble_fraction(pipeline: int, virtual: int, micro_batches: int) -> float:
    """(P - 1) / (V M + P - 1): the share of a step that each of P equal ranks waits."""
    return (pipeline - 1) / (virtual * micro_batches + pipeline - 1)


def _per_rank(parameters: tuple[StageParameters, ...], wire: WirePlan, tensor: int) -> tuple[int, ...]:
    return tuple(sum(parameters[s].held(tensor) for s in wire.stages_of(rank)) for rank in range(wire.pipeline))


def _stages(parameters: tuple[StageParameters, ...], wire: WirePlan) -> tuple[StagePlan, ...]:
    return tuple(
        StagePlan(
            *rank_and_chunk(stage, wire.pipeline),
            first_layer=wire.first_sublayer(stage) // 2,
            layers=layers,
            parameters=parameters[stage].counted,
        )
        for stage, layers in enumerate(wire.layers_per_stage)
    )


def _first_rates(config: RunConfig) -> tuple[float, ...]:
    total = config.training.steps
    shown = range(1, min(total, _RATES_SHOWN) + 1)
    return tuple(learning_rate(config.optimizer, config.schedule, total, step) for step in shown)
