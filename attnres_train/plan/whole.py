"""What a configuration amounts to, before any rank starts: parameters, stages, wire, memory, steps, rates."""

from __future__ import annotations

from dataclasses import dataclass

from attnres_train.config.run_config import RunConfig
from attnres_train.optim.schedule import learning_rate
from attnres_train.parallel.split import rank_and_chunk
from attnres_train.plan.checkpoint import CheckpointPlan, plan_checkpoint
from attnres_train.plan.groups import RankGroups, rank_groups
from attnres_train.plan.memory import MemoryPlan, worst_rank_memory
from attnres_train.plan.speeds import Machine
from attnres_train.plan.timing import TimePlan, Timing
from attnres_train.plan.traffic import TrafficPlan, plan_traffic
from attnres_train.plan.work import Worker
from attnres_train.setup import Setup

_RATES_SHOWN = 10


@dataclass(frozen=True)
class StagePlan:
    """One global pipeline stage. `parameters` counts each parameter of the model once over all stages."""

    rank: int
    chunk: int
    first_layer: int
    layers: int
    parameters: int


@dataclass(frozen=True)
class Plan:
    """All numbers are of the whole run or of one step, never of one rank, unless the name says so.

    `parameters_per_rank` is what a rank of each pipeline position holds, copies included; `bubble_fraction`
    the share of a step in which a rank waits, were all stages equal.
    """

    setup: Setup
    parameters_total: int
    parameters_per_rank: tuple[int, ...]
    stages: tuple[StagePlan, ...]
    bubble_fraction: float
    learning_rates: tuple[float, ...]
    wire: TrafficPlan
    tensor_bytes: float
    """That the tensor ranks of the busiest pipeline rank reduce in a step; 0 without tensor parallelism."""
    memory: MemoryPlan
    checkpoint: CheckpointPlan
    groups: RankGroups
    time: TimePlan | None = None
    """None where no device was named."""
    machine: Machine | None = None

    @property
    def step_seconds(self) -> float:
        """Of a plan with a machine."""
        assert self.time is not None, "no machine was named"
        return self.time.step_seconds

    @property
    def fits(self) -> bool | None:
        """Whether the fullest rank's tensors fit the device with a reserve; None where no device was named."""
        return None if self.machine is None else self.memory.total <= self.machine.usable_bytes


def plan(
    config: RunConfig, world_size: int | None = None, vocabulary: int | None = None, machine: Machine | None = None
) -> Plan:
    """The plan of a checked configuration on `world_size` ranks; None stands for one replica of the model.

    `vocabulary` is the number of entries of the tokenizer; None asks `vocabulary_size`, which may read it. With a
    `machine` it has the seconds of a step on it.

    Raises Refused where the vocabulary cannot be known.
    """
    return plan_of(Setup.of(config, world_size, vocabulary), machine)


def plan_of(setup: Setup, machine: Machine | None = None) -> Plan:
    """The same of a setup."""
    config, parallel, steps = setup.config, setup.config.parallel, setup.config.training.steps
    shown = range(1, min(steps, _RATES_SHOWN) + 1)
    return Plan(
        setup=setup,
        parameters_total=setup.description.parameters,
        parameters_per_rank=tuple(setup.held_by(rank) for rank in range(parallel.pipeline)),
        stages=_stages(setup),
        bubble_fraction=bubble_fraction(parallel.pipeline, parallel.virtual, setup.micro_batches),
        learning_rates=tuple(learning_rate(config.optimizer, config.schedule, steps, step) for step in shown),
        wire=plan_traffic(setup),
        tensor_bytes=Worker(setup).tensor_bytes() * setup.micro_batches,
        memory=worst_rank_memory(setup),
        checkpoint=plan_checkpoint(setup),
        groups=rank_groups(config, setup.world),
        time=None if machine is None else Timing(setup, machine).plan(),
        machine=machine,
    )


def bubble_fraction(pipeline: int, virtual: int, micro_batches: int) -> float:
    """(P - 1) / (V M + P - 1): the share of a step that each of P equal ranks waits."""
    return (pipeline - 1) / (virtual * micro_batches + pipeline - 1)


def _stages(setup: Setup) -> tuple[StagePlan, ...]:
    return tuple(
        StagePlan(
            *rank_and_chunk(stage, setup.wire.pipeline),
            first_layer=setup.layers_of(stage).start,
            layers=layers,
            parameters=setup.stages[stage].counted,
        )
        for stage, layers in enumerate(setup.layers_per_stage)
    )
