"""Layouts that advice tries on a number of devices: grids, micro-batches, what is made again, stages of ZeRO.

Layouts that nobody would start are left out, not refused: tensor parallelism beyond a node, sequence shards left off
beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from attnres_train.config.keys import all_keys
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import config_values
from attnres_train.engine.config import EngineConfig
from attnres_train.setup import Setup

Recompute = Literal["none", "depth", "block", "layer"]
MOST_MICRO_BATCH = 8
"""Samples of a micro-batch; more of them seldom make a product faster and never a bubble smaller."""
MOST_VIRTUAL = 8
MOST_PIPELINE = 64
RECOMPUTES: tuple[Recompute, ...] = ("none", "depth", "block", "layer")
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
    recompute: Recompute
    zero: int = 0

    def overrides(self, setup: Setup) -> str:
        """The command-line overrides that make `setup` this layout; what it has already is left out, and what changes
        nothing."""
        keys = [key for section in ("parallel", "training", "engine") for key in all_keys() if key.startswith(section)]
        present, wanted = config_values(setup.config, keys), config_values(self._split_as_stated(setup), keys)
        return " ".join(f"--{key} {str(wanted[key]).lower()}" for key in keys if wanted[key] != present[key])

    def _split_as_stated(self, setup: Setup) -> RunConfig:
        """The configuration of `setup` in this layout, its split told as near to what is stated as can be."""
        wanted, stated = setup.changed(self.applied_to(setup.config)), setup.config.parallel
        for layers in (stated.layers_per_stage, None):
            parallel = replace(wanted.config.parallel, layers_per_stage=layers, balance=stated.balance)
            made = setup.changed(replace(wanted.config, parallel=parallel))
            if made.layers_per_stage == wanted.layers_per_stage:
                return made.config
        return wanted.config

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
            config.training, micro_batch_size=self.micro_batch_size, accumulation=None, recompute=self.recompute
        )
        return replace(config, parallel=parallel, training=training, engine=self._engine(config.engine))

    def _engine(self, engine: EngineConfig) -> EngineConfig:
        if not self.zero:
            return EngineConfig()
        return EngineConfig(kind="deepspeed", deepspeed=replace(engine.deepspeed, zero_stage=self.zero))


def families(world: int, devices_per_node: int, num_layers: int) -> Iterator[list[Layout]]:
    """Layouts that differ in what is made again alone, the fastest first."""
    sizes = [1 << power for power in range(MOST_MICRO_BATCH.bit_length())]
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
