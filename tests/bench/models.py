"""The model, the batch and the step that benchmarks of whole steps share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

VOCABULARY = 8192


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Arguments for the shape of the model and of its batch."""
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=8, help="of the case `block`")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")


def shape_in_words(options: argparse.Namespace) -> str:
    shape = f"{options.layers} layers, width {options.width}, sequence {options.sequence}, batch {options.batch}"
    return f"{shape}, vocabulary {VOCABULARY}, {options.precision}"


def residual_of(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """The [residual] section of a case."""
    if name.startswith("{"):
        section: dict[str, Any] = json.loads(name)
    else:
        section = {"mode": name}
    if section["mode"] == "block":
        section.setdefault("block_size", 2 * options.layers // options.blocks)
    return section


def parts_of(options: argparse.Namespace, grid: Any, name: str) -> Any:
    """The parts of a run of the case `name`, built."""
    from attnres_train.setup import Setup
    from attnres_train.trainer.build import build_parts

    return build_parts(Setup.of(_config(options, residual_of(options, name)), grid.world_size, VOCABULARY), grid)


def step_of(parts: Any, batch: Any) -> Callable[[], None]:
    """One whole step as a function: forward, backward, clipping, update."""

    def step() -> None:
        parts.engine.zero_grad()
        parts.pipeline.run(parts.engine.chunks, [batch])
        parts.engine.step(1e-4)

    return step


def _config(options: argparse.Namespace, residual: dict[str, Any]) -> Any:
    from attnres_train.config.run_config import RunConfig
    from attnres_train.depth.config import ResidualConfig
    from attnres_train.model.config import ModelConfig
    from attnres_train.optim.config import OptimizerConfig, ScheduleConfig
    from attnres_train.trainer.config import TrainingConfig

    return RunConfig(
        model=ModelConfig(
            num_layers=options.layers,
            hidden_size=options.width,
            ffn_hidden_size=options.width * 8 // 3 // 64 * 64,
            num_attention_heads=options.width // 64,
        ),
        residual=ResidualConfig(**residual),
        optimizer=OptimizerConfig(learning_rate=1e-4, clip_grad_norm=1.0),
        schedule=ScheduleConfig(warmup_steps=0),
        training=TrainingConfig(
            global_batch_size=options.batch,
            micro_batch_size=options.batch,
            sequence_length=options.sequence,
            steps=1,
            precision=options.precision,
        ),
    )


def batch_of(options: argparse.Namespace) -> Any:
    import torch

    from tests.distributed.tiny import SyntheticBatch

    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (options.batch, options.sequence + 1), generator=generator)
    mask = torch.ones(options.batch, options.sequence)
    return SyntheticBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), mask)
