"""Build the parts of a run from its configuration, one function a part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron.core.transformer import TransformerConfig

from attnres_train.config.run_config import RunConfig
from attnres_train.depth.mix import DTYPES
from attnres_train.engine.interface import Engine
from attnres_train.engine.megatron import MegatronEngine
from attnres_train.model.megatron import transformer_config
from attnres_train.model.parameters import initialize
from attnres_train.model.stage import StageModel, StageRole
from attnres_train.parallel.grid import Grid
from attnres_train.parallel.pipeline import Pipeline
from attnres_train.setup import Setup


@dataclass(frozen=True)
class Parts:
    """What trains: the stages of this rank, one a chunk, the engine that wraps them, the pipeline that runs them."""

    stages: Sequence[StageModel]
    engine: Engine
    pipeline: Pipeline


def build_parts(setup: Setup, grid: Grid) -> Parts:
    """The stages of this rank with their initial weights, in an engine, and the pipeline around them."""
    megatron, stages = build_stages(setup, grid)
    engine = _build_engine(setup.config, grid, megatron, stages)
    return Parts(stages, engine, Pipeline(setup, grid, megatron, finalize=engine.finalize))


def build_stages(setup: Setup, grid: Grid) -> tuple[TransformerConfig, list[StageModel]]:
    """The stages of this rank with their initial weights, and megatron-core's configuration of them."""
    config, parallel = setup.config, setup.config.parallel
    megatron = transformer_config(
        config.model,
        dtype=DTYPES[config.training.precision],
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        virtual=parallel.virtual,
        sequence=parallel.sequence,
        overlap=parallel.overlap,
        micro_batch_group=parallel.micro_batch_group,
        deterministic=config.training.deterministic,
    )
    return megatron, [build_stage(setup, grid, megatron, stage) for stage in grid.stages()]


def _build_engine(config: RunConfig, grid: Grid, megatron: TransformerConfig, stages: Sequence[StageModel]) -> Engine:
    if config.engine.kind == "megatron":
        return MegatronEngine(stages, config.optimizer, megatron, grid)
    from attnres_train.engine.deepspeed import DeepSpeedEngine  # imports nothing of DeepSpeed unless it is chosen

    return DeepSpeedEngine(
        stages,
        config.optimizer,
        config.engine.deepspeed,
        grid,
        config.training.micro_batch_size,
    )


def build_stage(setup: Setup, grid: Grid, megatron: TransformerConfig, stage: int) -> StageModel:
    """One stage with its initial weights, on the device."""
    config, parallel = setup.config, setup.config.parallel
    role = StageRole(
        stage=stage,
        layers=setup.layers_of(stage),
        first=stage == 0,
        last=setup.is_last(stage),
        chunk=stage // parallel.pipeline if parallel.virtual > 1 else None,
    )
    module = StageModel(
        config.model,
        config.residual,
        megatron,
        grid.groups,
        role,
        setup.vocabulary,
        setup.padded_vocabulary,
        config.training.recompute,
    )
    initialize(module, config.training.seed)
    return module.to(grid.device)
