"""Build the parts of a run from its configuration, one function a part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from megatron.core.transformer import TransformerConfig

from attnres_train.config.resolve import wire_plan
from attnres_train.config.run_config import RunConfig
from attnres_train.depth.mix import DTYPES
from attnres_train.engine.interface import Engine
from attnres_train.engine.megatron import MegatronEngine
from attnres_train.model.megatron import transformer_config
from attnres_train.model.parameters import LogicalParameter, initialize, logical_parameters
from attnres_train.model.stage import StageModel, StageRole
from attnres_train.parallel.config import ParallelConfig
from attnres_train.parallel.grid import Grid
from attnres_train.parallel.pipeline import Pipeline
from attnres_train.parallel.split import stage_layers
from attnres_train.parallel.wire import WirePlan


@dataclass(frozen=True)
class Parts:
    """What trains: the stages of this rank, one a chunk, the engine that wraps them, the pipeline that runs them."""

    stages: Sequence[StageModel]
    engine: Engine
    pipeline: Pipeline


def build_parts(config: RunConfig, grid: Grid, layers_per_stage: tuple[int, ...], vocabulary_size: int) -> Parts:
    """The stages of this rank with their initial weights, in an engine, and the pipeline around them."""
    dtype = DTYPES[config.training.precision]
    parallel = config.parallel
    megatron = transformer_config(
        config.model,
        dtype=dtype,
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        virtual=parallel.virtual,
        sequence=parallel.sequence,
        overlap=parallel.overlap,
        micro_batch_group=parallel.micro_batch_group,
    )
    plan = wire_plan(config, layers_per_stage)
    stages = [_build_stage(config, grid, megatron, plan, stage, vocabulary_size) for stage in grid.stages()]
    engine = _build_engine(config, grid, megatron, stages)
    pipeline = Pipeline(
        grid,
        megatron,
        plan,
        parallel,
        micro_batch_size=config.training.micro_batch_size,
        sequence_length=config.training.sequence_length,
        dtype=dtype,
    )
    return Parts(stages, engine, pipeline)


def parameters_of(config: RunConfig, grid: Grid, vocabulary_size: int) -> list[LogicalParameter]:
    """The parameters of the model in one piece, whatever its layout: names, shapes and cuts, but no values.

    `grid` must be of one tensor rank.
    """
    whole = replace(config, parallel=ParallelConfig())
    plan = wire_plan(whole, (config.model.num_layers,))
    megatron = transformer_config(config.model, dtype=DTYPES[config.training.precision])
    with torch.device("meta"):
        return list(logical_parameters(_stage(whole, grid, megatron, plan, 0, vocabulary_size)))


def _build_engine(config: RunConfig, grid: Grid, megatron: TransformerConfig, stages: Sequence[StageModel]) -> Engine:
    if config.engine.kind == "megatron":
        return MegatronEngine(stages, config.optimizer, megatron, grid)
    from attnres_train.engine.deepspeed import DeepSpeedEngine  # imports nothing of DeepSpeed unless it is chosen

    return DeepSpeedEngine(
        stages,
        config.optimizer,
        config.engine.deepspeed,
        megatron,
        grid,
        config.training.micro_batch_size,
    )


def _build_stage(
    config: RunConfig,
    grid: Grid,
    megatron: TransformerConfig,
    plan: WirePlan,
    stage: int,
    vocabulary_size: int,
) -> StageModel:
    module = _stage(config, grid, megatron, plan, stage, vocabulary_size)
    initialize(module, config.training.seed)
    return module.to(grid.device)


def _stage(
    config: RunConfig,
    grid: Grid,
    megatron: TransformerConfig,
    plan: WirePlan,
    stage: int,
    vocabulary_size: int,
) -> StageModel:
    """The stage as megatron-core allocates it, its weights still to be set."""
    interleaved = config.parallel.virtual > 1
    role = StageRole(
        stage=stage,
        layers=stage_layers(plan.layers_per_stage, stage),
        first=stage == 0,
        last=stage == plan.num_stages - 1,
        chunk=stage // config.parallel.pipeline if interleaved else None,
    )
    padded = config.model.padded_vocabulary(vocabulary_size, config.parallel.tensor)
    return StageModel(
        config.model,
        config.residual,
        megatron,
        grid.groups,
        role,
        vocabulary_size,
        padded,
        config.training.recompute,
    )
