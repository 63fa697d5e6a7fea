"""What `attnres plan` predicts against what a step takes: six layouts on this machine, in one run.

    python -m tests.bench.plan                                  6 layers, width 384, fp32, 2 ranks
    python -m tests.bench.plan --precision bf16 --steps 20

First the machine is measured as `attnres doctor CONFIG --device-file FILE` does it, with the shapes of the first
layout. `ratio` is predicted over measured seconds of a step. On a machine that others use, too, the clock on the wall
tells more of them than of the step: `cpu_ratio` holds the processor time of the busiest rank against the prediction
without its waiting, and is what a busy machine can tell.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from tests.bench.paired import arguments, show

VOCABULARY = 4096
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "data 2": {},
    "tensor 2, sequence": {"parallel": {"tensor": 2, "sequence": True}},
    "pipeline 2": {"parallel": {"pipeline": 2}},
    "pipeline 2, virtual 3": {"parallel": {"pipeline": 2, "virtual": 3}},
    "pipeline 2, full, recompute": {
        "parallel": {"pipeline": 2, "balance": "cost"},
        "residual": {"mode": "full"},
        "training": {"recompute": "layer"},
    },
}
"""By name: what differs from the first, which is one rank; all others are two."""


def main() -> None:
    options = _options()
    from attnres_train.config.load import Loaded
    from attnres_train.doctor.device import measure_device
    from attnres_train.doctor.look import _devices

    base = config_of(options, {})
    device = measure_device(Loaded(Path("bench.toml"), base, {}), 1, 2, _devices())
    rows = [measure(options, name, device.machine()) for name in options.layouts or LAYOUTS]
    shape = f"{options.layers} layers, width {options.width}, sequence {options.sequence}, {options.precision}"
    show(rows, options.json, f"predicted over measured seconds of a step: {shape}, least of {options.steps} steps")


def _options() -> argparse.Namespace:
    parser = arguments(__doc__.splitlines()[0], rounds=1)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--batch", type=int, default=2, help="samples of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=4, help="of a step")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), metavar="LAYOUT")
    return parser.parse_args()


def config_of(options: argparse.Namespace, changes: dict[str, Any]) -> Any:
    """The configuration of a layout."""
    from attnres_train.config.run_config import RunConfig
    from attnres_train.depth.config import ResidualConfig
    from attnres_train.model.config import ModelConfig
    from attnres_train.optim.config import OptimizerConfig, ScheduleConfig
    from attnres_train.parallel.config import ParallelConfig
    from attnres_train.tokenizer.config import TokenizerConfig
    from attnres_train.trainer.config import TrainingConfig

    training = {
        "global_batch_size": options.batch * options.micro_batches,
        "micro_batch_size": options.batch,
        "sequence_length": options.sequence,
        "steps": 100,
        "precision": options.precision,
    }
    return RunConfig(
        model=ModelConfig(
            num_layers=options.layers,
            hidden_size=options.width,
            ffn_hidden_size=options.width * 8 // 3 // 64 * 64,
            num_attention_heads=options.width // 64,
        ),
        residual=ResidualConfig(**changes.get("residual", {"mode": "block", "block_size": 4})),
        tokenizer=TokenizerConfig(vocab_size=VOCABULARY),
        optimizer=OptimizerConfig(learning_rate=1e-4, clip_grad_norm=1.0),
        schedule=ScheduleConfig(warmup_steps=0),
        training=TrainingConfig(**training | changes.get("training", {})),
        parallel=ParallelConfig(**changes.get("parallel", {})),
    )


def measure(options: argparse.Namespace, name: str, machine: Any) -> dict[str, Any]:
    """One row: what is predicted for a layout, and what its ranks take."""
    from attnres_train.plan import plan
    from tests.distributed.ranks import run_ranks

    config, world = config_of(options, LAYOUTS[name]), 1 if name == "one rank" else 2
    planned = plan(config, world, machine=machine)
    assert planned.time is not None
    found = run_ranks(seconds_of_steps, world, config, options.steps)
    wall = min(max(times) for times in zip(*(walls for walls, _ in found), strict=True))
    busiest = max(min(processor) for _, processor in found)
    predicted, kinds = planned.time.step_seconds, planned.time.kinds
    return {
        "layout": name,
        "predicted_seconds": predicted,
        "measured_seconds": wall,
        "ratio": predicted / wall,
        "cpu_seconds": busiest,
        "cpu_ratio": (predicted - kinds["waiting"]) / busiest,
    }


def seconds_of_steps(config: Any, steps: int) -> tuple[list[float], list[float]]:
    """Of this rank: seconds on the wall and of the processor of each step, the first two left out."""
    import torch.distributed as dist

    from attnres_train.parallel.grid import build_grid
    from attnres_train.setup import Setup
    from attnres_train.trainer.build import build_parts

    grid = build_grid(config.parallel, seed=1)
    parts = build_parts(Setup.of(config, grid.world_size, VOCABULARY), grid)
    batches = batches_of(config, grid.data)
    walls, processor = [], []
    for _ in range(steps + 2):
        dist.barrier()
        started, worked = time.perf_counter(), time.process_time()
        parts.engine.zero_grad()
        parts.pipeline.run(parts.engine.chunks, batches)
        parts.engine.step(1e-4)
        walls.append(time.perf_counter() - started)
        processor.append(time.process_time() - worked)
    return walls[2:], processor[2:]


def batches_of(config: Any, data: int) -> list[Any]:
    """The micro-batches of one rank and step."""
    import torch

    from tests.distributed.tiny import SyntheticBatch

    training = config.training
    size = (training.micro_batch_size, training.sequence_length + 1)
    tokens = torch.randint(VOCABULARY, size, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(size[0], size[1] - 1)
    batch = SyntheticBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), mask)
    return [batch] * (training.global_batch_size // (training.micro_batch_size * data))


if __name__ == "__main__":
    main()
