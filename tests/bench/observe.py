"""What a look at the depth costs: a step that is looked at over the same step unseen.

    python -m tests.bench.observe
    python -m tests.bench.observe --precision bf16 --width 1024 --layers 8

`ratio` is of whole steps that took turns in one process, on one pinned thread, CPU time; the drawing of the map is
counted with the step, though a run does it in a thread of its own. `amortised` is what that adds to a run that looks
every `--interval` steps. `unseen` is the step of a model that has been looked at before: nothing may be left of that.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench.models import add_shape, batch_of, parts_of, shape_in_words, step_of
from tests.bench.paired import arguments, interleaved, median_of_ratios, ratio_of_minima, settle, show

CASES = ("standard", "block", "full")


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], rounds=7)
    add_shape(parser)
    parser.add_argument("--interval", type=int, default=100, help="steps from look to look (default %(default)s)")
    options = parser.parse_args()
    settle("tests.bench.observe")
    from tests.distributed.ranks import run_ranks

    rows = run_ranks(measure, 1, options)[0]
    show(rows, options.json, f"a step that is looked at over one that is not: {shape_in_words(options)}, one thread")


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the table, measured on the one rank of a process group."""
    from attnres_train.parallel.config import ParallelConfig
    from attnres_train.parallel.grid import build_grid

    grid = build_grid(ParallelConfig(), seed=1)
    with TemporaryDirectory() as folder:
        return [_row(options, grid, name, Path(folder) / name) for name in CASES]


def _row(options: argparse.Namespace, grid: Any, name: str, folder: Path) -> dict[str, Any]:
    from attnres_train.observe.depth_recorder import DepthRecorder
    from attnres_train.observe.depth_watch import DepthWatch

    folder.mkdir()
    parts, never = parts_of(options, grid, name), parts_of(options, grid, name)
    step, batch = step_of(parts, batch_of(options)), batch_of(options)
    watch, recorder = DepthWatch(parts.stages, grid), DepthRecorder(folder, 0, lambda *_: None)

    def looked_at() -> None:
        with watch.looking():
            step()
        recorder.record(1, watch.collect())
        recorder.wait()

    cases = {"never": step_of(never, batch), "unseen": step, "looked at": looked_at}
    seconds = interleaved(cases, options.rounds)
    ratio = ratio_of_minima(seconds, "looked at", "never")
    return {
        "case": name,
        "ratio": ratio,
        "median": median_of_ratios(seconds, "looked at", "never"),
        "amortised": 1 + (ratio - 1) / options.interval,
        "unseen": ratio_of_minima(seconds, "unseen", "never"),
        "seconds": min(seconds["never"]),
    }


if __name__ == "__main__":
    main()
