"""A whole training step of each residual mode over that of `standard`: forward, backward, clipping, AdamW.

    python -m tests.bench.step                                     12 layers, width 384, fp32
    python -m tests.bench.step --precision bf16 --width 1024 --layers 8

One model a mode, on the same synthetic batch, taking turns in one process on one pinned thread.
`kept` is what stands in memory after one forward, beside the weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from tests.bench.models import add_shape, batch_of, parts_of, shape_in_words, step_of
from tests.bench.paired import arguments, interleaved, median_of_ratios, ratio_of_minima, settle, show

DEFAULT_CASES = ("standard", "block", "full")


def main() -> None:
    options = _options()
    settle("tests.bench.step")
    from tests.distributed.ranks import run_ranks

    rows = run_ranks(measure, 1, options)[0]
    show(rows, options.json, f"training step over `standard`: {shape_in_words(options)}, one thread, CPU time")


def _options() -> argparse.Namespace:
    parser = arguments(__doc__.splitlines()[0], rounds=7)
    add_shape(parser)
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


def _case(options: argparse.Namespace, grid: Any, name: str) -> tuple[Callable[[], object], int]:
    """One whole step as a function, and the bytes that stand after its forward."""
    from tests.bench.kept import live_bytes

    parts, batch = parts_of(options, grid, name), batch_of(options)
    (stage,) = parts.stages
    stage.set_input_tensor([None])
    return step_of(parts, batch), live_bytes(lambda: stage(batch.tokens_BT, batch.labels_BT))


if __name__ == "__main__":
    main()
