"""The whole configuration of a run: one frozen section for each owner."""

from __future__ import annotations

from dataclasses import field

from attnres_train.checkpoint.config import CheckpointConfig
from attnres_train.data.config import DataConfig
from attnres_train.depth.config import ResidualConfig
from attnres_train.engine.config import EngineConfig
from attnres_train.model.config import ModelConfig
from attnres_train.observe.config import ObserveConfig
from attnres_train.optim.config import OptimizerConfig, ScheduleConfig
from attnres_train.parallel.config import ParallelConfig
from attnres_train.section import section
from attnres_train.tokenizer.config import TokenizerConfig
from attnres_train.trainer.config import TrainingConfig


@section
class RunConfig:
    model: ModelConfig
    training: TrainingConfig
    residual: ResidualConfig = field(default_factory=ResidualConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)
