"""Draw the loss curves of a run: `python -m attnres_train.observe.plot RUN --output loss.png`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from attnres_train.observe.record_lines import parse_record


def read_curve(run_folder: Path, tag: str) -> tuple[list[int], list[float]]:
    """Steps and values of `tag` in the run's `metrics.jsonl`."""
    lines = (run_folder / "metrics.jsonl").read_bytes().splitlines()
    found = [record for line in lines if (record := parse_record(line)) and tag in record]
    return [record["step"] for record in found], [record[tag] for record in found]


def draw_loss(run_folder: Path, output: Path, bar_nats: float | None) -> None:
    """Training and validation loss against steps, and a horizontal bar to beat; needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*read_curve(run_folder, "loss/train"), color="#8ab4d8", label="training")
    axes.plot(*read_curve(run_folder, "loss/valid"), "o-", color="#1f4e79", label="validation")
    if bar_nats is not None:
        axes.axhline(bar_nats, color="#b04a3a", linestyle="--", label=f"unigram entropy, {bar_nats:.2f}")
    axes.set_xlabel("step")
    axes.set_ylabel("nats a token")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(output, dpi=140)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m attnres_train.observe.plot", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--output", type=Path, default=Path("loss.png"), metavar="PNG")
    parser.add_argument("--bar", type=float, default=None, metavar="NATS", help="draw a level to beat")
    given = parser.parse_args(arguments)
    draw_loss(given.run, given.output, given.bar)
    return 0


if __name__ == "__main__":
    sys.exit(main())
