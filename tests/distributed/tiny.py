"""A tiny model and synthetic batches, the same on every layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnres_train.config.run_config import RunConfig
from attnres_train.data.config import DataConfig
from attnres_train.depth.config import ResidualConfig
from attnres_train.engine.config import DeepSpeedSection, EngineConfig
from attnres_train.model.config import ModelConfig, RopeScaling
from attnres_train.optim.config import OptimizerConfig, ScheduleConfig
from attnres_train.parallel.config import ParallelConfig
from attnres_train.trainer.config import TrainingConfig
from tests.cases import ATTENTIONS, CASES, ISOLATED

VOCABULARY = 83
END_OF_DOCUMENT = 0
MICRO_BATCHES = 4
MICRO_BATCH = 2
TOKENS = 16


@dataclass(frozen=True)
class SyntheticBatch:
    tokens_BT: Tensor
    labels_BT: Tensor
    loss_mask_BT: Tensor
    segments_BT: Tensor | None = None


def tiny_config(case: str = "block", layers: int = 4, **parallel: Any) -> RunConfig:
    """A run of `layers` layers whose vocabulary needs padding and whose blocks do not divide the stages.

    `case` is a name in tests/cases.py; those in ISOLATED isolate documents. `model` has more of its section.
    """
    residual, options = ATTENTIONS.get(case, (ISOLATED.get(case, case), {}))
    options = {**options, **parallel.pop("model", {})}
    scaling = RopeScaling(**options.pop("rope_scaling", {}))
    tied = parallel.pop("tied", False)
    qk_norm = parallel.pop("qk_norm", True)
    precision = parallel.pop("precision", "fp32")
    clip = parallel.pop("clip", 0.5)
    recompute = parallel.pop("recompute", "none")
    backend = parallel.pop("backend", "auto")
    zero = parallel.pop("zero", None)
    return RunConfig(
        model=ModelConfig(
            num_layers=layers,
            hidden_size=32,
            ffn_hidden_size=48,
            num_attention_heads=4,
            num_query_groups=2,
            tie_embeddings=tied,
            qk_norm=qk_norm,
            pad_vocabulary_to=8,
            # Wide enough that no branch output is tiny: keys are normalised, and rounding grows with 1 / rms.
            init_std=0.1,
            rope_scaling=scaling,
            **options,
        ),
        residual=ResidualConfig(**CASES[residual], backend=backend),
        data=DataConfig(isolate_documents=case in ISOLATED),
        optimizer=OptimizerConfig(learning_rate=1e-3, clip_grad_norm=clip),
        schedule=ScheduleConfig(kind="cosine", warmup_steps=3),
        training=TrainingConfig(
            global_batch_size=MICRO_BATCHES * MICRO_BATCH,
            micro_batch_size=MICRO_BATCH,
            sequence_length=TOKENS,
            steps=20,
            precision=precision,
            recompute=recompute,
        ),
        parallel=ParallelConfig(**parallel),
        engine=EngineConfig() if zero is None else deepspeed_engine(**zero),
    )


def deepspeed_engine(stage: int, **settings: Any) -> EngineConfig:
    """ZeRO `stage`, with buckets that the tiny model fills several of, and matrices that ZeRO-3 really divides."""
    small = {"reduce_bucket_size": 3000, "param_persistence_threshold": 0}
    return EngineConfig(kind="deepspeed", deepspeed=DeepSpeedSection(zero_stage=stage, **small | settings))


def step_batches(step: int, data_rank: int = 0, data_ranks: int = 1, isolated: bool = False) -> list[SyntheticBatch]:
    """The micro-batches of `step` for one replica; token counts differ between micro-batches and samples.

    `isolated` isolates documents, of 6 tokens on average.
    """
    generator = torch.Generator().manual_seed(1000 + step)
    samples = MICRO_BATCHES * MICRO_BATCH
    tokens = torch.randint(0, VOCABULARY, (samples, TOKENS + 1), generator=generator)
    mask = (torch.rand(samples, TOKENS, generator=generator) < 0.8).float()
    ends = torch.rand(samples, TOKENS + 1, generator=generator) < 1 / 6
    tokens = tokens.masked_fill(ends, END_OF_DOCUMENT) if isolated else tokens
    segments = (tokens[:, :-1] == END_OF_DOCUMENT).cumsum(1) if isolated else None
    stride = MICRO_BATCH * data_ranks
    starts = range(data_rank * MICRO_BATCH, samples, stride)
    rows = [slice(start, start + MICRO_BATCH) for start in starts]
    return [
        SyntheticBatch(tokens[row, :-1], tokens[row, 1:], mask[row], None if segments is None else segments[row])
        for row in rows
    ]


def with_parallel(config: RunConfig, **parallel: Any) -> RunConfig:
    return replace(config, parallel=replace(config.parallel, **parallel))
