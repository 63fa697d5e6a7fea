"""A whole training step of each residual mode over that of `standard`: forward, backward, clipping, AdamW.

    python -m tests.bench.step                                     12 layers, width 384, fp32
    python -m tests.bench.step --precision bf16 --width 1024 --layers 8

One model a mode, on the same synthetic batch, taking turns in one process on one pinned thread.
`kept` is what stands in memory after one forward, beside the weights.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from tests.bench.paired import arguments, interleaved, median_of_ratios, ratio_of_minima, settle, show

VOCABULARY = 8192
DEFAULT_CASES = ("standard", "block", "full")


def main() -> None:
    options = _options()
    settle("tests.bench.step")
    from tests.distributed.ranks import run_ranks

    rows = run_ranks(measure, 1, options)[0]
    shape = f"{options.layers} layers, width {options.width}, sequence {options.sequence}, batch {options.batch}"
    about = (
        f"training step over `standard`: {shape}, vocabulary {VOCABULARY}, {options.precision}, one thread, CPU time"
    )
    show(rows, options.json, about)


def _options() -> argparse.Namespace:
    parser = arguments(__doc__.splitlines()[0], rounds=7)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=8, help="of the case `block`")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument(
        "--cases",
        nargs="+",
        default=DEFAULT_CASES,
        metavar="CASE",
        help='`standard`, `block`, `full`, or [residual] as JSON: \'{"mode": "full", "backend": "lean"}\'',
    )
    return parser.parse_args()


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the table, measured on the one rank of a process group."""
    from attnres_train.parallel.config import ParallelConfig
    from attnres_train.parallel.grid import build_grid

    grid = build_grid(ParallelConfig(), seed=1)
    names = list(dict.fromkeys(["standard", *options.cases]))
    steps, kept = {}, {}
    for name in names:
        steps[name], kept[name] = _case(options, grid, name)
    seconds = interleaved(steps, options.rounds)
    return [
        {
            "case": name,
            "ratio": ratio_of_minima(seconds, name, "standard"),
            "median": median_of_ratios(seconds, name, "standard"),
            "kept_ratio": kept[name] / kept["standard"],
            "kept_mib": kept[name] / 2**20,
            "seconds": min(seconds[name]),
        }
        for name in names
    ]


def residual_of(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """The [residual] section of a case."""
    if name.startswith("{"):
        section: dict[str, Any] = json.loads(name)
    else:
        section = {"mode": name}
    if section["mode"] == "block":
        section.setdefault("block_size", 2 * options.layers // options.blocks)
    return section


def _case(options: argparse.Namespace, grid: Any, name: str) -> tuple[Callable[[], object], int]:
    """One whole step as a function, and the bytes that stand after its forward."""
    from attnres_train.trainer.build import build_parts
    from tests.bench.kept import live_bytes

    config = _config(options, residual_of(options, name))
    parts = build_parts(config, grid, (options.layers,), VOCABULARY)
    batch = _batch(options)

    def step() -> None:
        parts.engine.zero_grad()
        parts.pipeline.run(parts.engine.chunks, [batch])
        parts.engine.step(1e-4)

    stage = parts.engine.chunks[0].module
    stage.set_input_tensor([None])
    return step, live_bytes(lambda: stage(batch.tokens_BT, batch.labels_BT))


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


def _batch(options: argparse.Namespace) -> Any:
    import torch

    from tests.distributed.tiny import SyntheticBatch

    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (options.batch, options.sequence + 1), generator=generator)
    mask = torch.ones(options.batch, options.sequence)
    return SyntheticBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), mask)


if __name__ == "__main__":
    main()
