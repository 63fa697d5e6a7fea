"""Layouts that advice tries on a number of devices: grids, micro-batches, what is made again, stages of ZeRO.

Layouts that nobody would start are left out, not refused: tensor parallelism beyond a node, sequence shards left off
beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from attnres_train.config.run_config import RunConfig
from attnres_train.engine.config import EngineConfig
from attnres_train.setup import Setup

Balance = Literal["layers", "cost"]

MOST_MICRO_BATCH = 8
"""Samples of a micro-batch; more of them seldom make a product faster and never a bubble smaller."""
MOST_VIRTUAL = 8
MOST_PIPELINE = 64
RECOMPUTES: tuple[Literal["none", "depth", "block", "layer"], ...] = ("none", "depth", "block", "layer")
"""From the fastest to the leanest; the first that fits is the one that is timed."""


@dataclass(frozen=True)
class Layout:
    """What a candidate changes. `zero` is DeepSpeed's stage; 0 stands for megatron-core's engine."""

    tensor: int
    pipeline: int
    virtual: int
    data: int
    sequence: bool
    micro_batch_size: int
    recompute: Literal["none", "depth", "block", "layer"]
    zero: int = 0

    def overrides(self, setup: Setup) -> str:
        """The command-line overrides that make `setup` this layout; what it has already is left out, and what changes
        nothing."""
        config = setup.config
        parallel, training, engine = config.parallel, config.training, config.engine
        layers_per_stage, balance = self._split_as_stated(setup)
        pairs: list[tuple[str, object, object]] = [
            ("parallel.tensor", self.tensor, parallel.tensor),
            ("parallel.pipeline", self.pipeline, parallel.pipeline),
            ("parallel.virtual", self.virtual, parallel.virtual),
            ("parallel.sequence", self.sequence, parallel.sequence),
            ("parallel.layers_per_stage", layers_per_stage, parallel.layers_per_stage),
            ("parallel.micro_batch_group", None, parallel.micro_batch_group),
            ("parallel.balance", balance, parallel.balance),
            ("training.micro_batch_size", self.micro_batch_size, training.micro_batch_size),
            ("training.accumulation", None, training.accumulation),
            ("training.recompute", self.recompute, training.recompute),
        ]
        wanted_engine = self._engine(engine)
        pairs.append(("engine.kind", wanted_engine.kind, engine.kind))
        for name, value in vars(wanted_engine.deepspeed).items():
            pairs.append((f"engine.deepspeed.{name}", value, getattr(engine.deepspeed, name)))
        changed = [(key, wanted) for key, wanted, present in pairs if wanted != present]
        return " ".join(f"--{key} {str(wanted).lower()}" for key, wanted in changed)

    def _split_as_stated(self, setup: Setup) -> tuple[tuple[int, ...] | None, Balance]:
        """`layers_per_stage` and `balance` that give this layout's split, as near to those of `setup` as can be."""
        wanted, parallel = setup.changed(self.applied_to(setup.config)), setup.config.parallel
        for stated in ((parallel.layers_per_stage, parallel.balance), (None, parallel.balance)):
            made = replace(wanted.config.parallel, layers_per_stage=stated[0], balance=stated[1])
            if setup.changed(replace(wanted.config, parallel=made)).layers_per_stage == wanted.layers_per_stage:
                return stated
        return None, "cost"

    def applied_to(self, config: RunConfig) -> RunConfig:
        """`config` in this layout. With ZeRO it keeps what else it says of DeepSpeed."""
        parallel = replace(
            config.parallel,
            tensor=self.tensor,
            pipeline=self.pipeline,
            virtual=self.virtual,
            sequence=self.sequence,
            layers_per_stage=None,
            micro_batch_group=None,
            balance="cost",
        )
        training = replace(
            config.training,
            micro_batch_size=self.micro_batch_size,
            accumulation=None,
            recompute=self.recompute,
        )
        return replace(config, parallel=parallel, training=training, engine=self._engine(config.engine))

    def _engine(self, engine: EngineConfig) -> EngineConfig:
        if not self.zero:
            return EngineConfig()
        return EngineConfig(kind="deepspeed", deepspeed=replace(engine.deepspeed, zero_stage=self.zero))


def families(world: int, devices_per_node: int, num_layers: int) -> Iterator[list[Layout]]:
    """Layouts that differ in what is made again alone, the fastest first."""
    sizes = [1 << power for power in range(MOST_MICRO_BATCH.bit_length()) if 1 << power <= MOST_MICRO_BATCH]
    for tensor, pipeline, virtual in _grids(world, devices_per_node, num_layers):
        data = world // (tensor * pipeline)
        zeros = (0, 2, 3) if pipeline == 1 and data > 1 else (0,)
        for size, zero in product(sizes, zeros):
            yield [Layout(tensor, pipeline, virtual, data, tensor > 1, size, again, zero) for again in RECOMPUTES]


def _grids(world: int, devices_per_node: int, num_layers: int) -> Iterator[tuple[int, int, int]]:
    """Tensor, pipeline and virtual degrees, whatever they are good for."""
    node = min(devices_per_node, world)
    for tensor in (t for t in range(1, node + 1) if world % t == 0 and node % t == 0):
        rest = world // tensor
        for pipeline in (p for p in range(1, min(rest, MOST_PIPELINE) + 1) if rest % p == 0):
            most = 1 if pipeline == 1 else max(1, min(MOST_VIRTUAL, num_layers // pipeline))
            yield from ((tensor, pipeline, virtual) for virtual in range(1, most + 1))
