"""`attnres report`: its options, and what it prints."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from attnres_train.cli.command import Answer, Command
from attnres_train.paths import path_argument
from attnres_train.words import counted

REPORT = """\
One HTML file to be opened anywhere (nothing is loaded from a network), and PNGs of its figures: loss against steps,
tokens and compute, gradients, speed, memory, where readers look and how large what flows is by depth; of several runs
also what differs between them. Reads config.toml, metrics.jsonl and depth.jsonl alone, also while a run trains.

  attnres report runs/quickstart                               writes runs/quickstart/report/index.html
  attnres report runs/block runs/standard --output comparison  one page of both
"""


def _report(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    """Write the report."""
    from attnres_train.report.write import report  # imports numpy and plotly

    output = options.output
    if output is None:
        output = options.runs[0] / "report" if len(options.runs) == 1 else Path("report")
    made = report(options.runs, output)
    lines = [f"{made.page}: {counted(len(made.runs), 'run')}, {counted(len(made.pictures), 'PNG')} beside it"]
    lines += [f"  {run.label}: {words}" for run in made.runs for words in run.notes]
    lines += [f"  {run.label}, step {step}: {words}" for run in made.runs for step, words in run.alarms]
    return Answer(made.as_json(), "\n".join(lines))


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("runs", metavar="RUN", type=path_argument, nargs="+")
    where = "default: RUN/report of one run, ./report of several"
    command.add_argument("--output", type=path_argument, metavar="FOLDER", help=where)


COMMAND = Command(
    name="report",
    help="make a page of one or several runs: curves, depth, what differs",
    answer=_report,
    options=_options,
    epilog=REPORT,
)
