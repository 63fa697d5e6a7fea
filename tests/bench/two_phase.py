"""Does it pay to read the finished blocks once for all queries of a block? Forward only, where it would pay most.

    python -m tests.bench.two_phase --queries 3 8 24

Ratios over `native`, which reads the sources again for every query.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from tests.bench.paired import arguments, interleaved, settle, show


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], rounds=10)
    parser.add_argument("--queries", type=int, nargs="+", default=[3, 8, 24])
    parser.add_argument("--sources", type=int, default=5, help="finished ones (default %(default)s)")
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--width", type=int, default=384)
    options = parser.parse_args()
    settle("tests.bench.two_phase")
    about = (
        f"mixes of {options.sources} finished sources and a partial, [{options.rows}, {options.width}] fp32, forward"
    )
    show([row for queries in options.queries for row in measure(options, queries)], options.json, about)


def measure(options: argparse.Namespace, queries: int) -> list[dict[str, Any]]:
    import torch

    from attnres_train.depth import aggregate
    from attnres_train.depth.two_phase import attend_finished, merge_partial

    torch.set_num_threads(1)
    finished = [torch.randn(options.rows, options.width) for _ in range(options.sources)]
    partial, gain = torch.randn(options.rows, options.width), torch.ones(options.width)
    vectors = [torch.randn(options.width) / options.width**0.5 for _ in range(queries)]

    def one_by_one(backend: Any) -> Callable[[], object]:
        return lambda: [aggregate([*finished, partial], q, gain, eps=1e-5, backend=backend) for q in vectors]

    def in_two_phases() -> object:
        states = attend_finished(finished, vectors, [gain] * queries, eps=1e-5)
        return [
            merge_partial(state, partial, q, gain, eps=1e-5, dtype=torch.float32)
            for state, q in zip(states, vectors, strict=True)
        ]

    with torch.no_grad():
        cases = {"native": one_by_one("native"), "lean": one_by_one("lean"), "two-phase (torch)": in_two_phases}
        seconds = interleaved(cases, options.rounds)
    least = min(seconds["native"])
    return [{"case": f"{name}, {queries} queries", "ratio": min(seconds[name]) / least} for name in cases]


if __name__ == "__main__":
    main()
