"""`attnres report`: its options, and what it prints."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnres_train.paths import path_argument
from attnres_train.plan.page import counted

REPORT = """\
One HTML file to be opened anywhere (nothing is loaded from a network), and PNGs of its figures: loss against steps,
tokens and compute, gradients, speed, memory, where readers look and how large what flows is by depth; of several runs
also what differs between them. Reads config.toml, metrics.jsonl and depth.jsonl alone, also while a run trains.

  attnres report runs/quickstart                               writes runs/quickstart/report/index.html
  attnres report runs/block runs/standard --output comparison  one page of both
"""


def run_report(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Write the report; what it says, as an object and as text."""
    from attnres_train.report.write import report  # imports numpy and plotly

    output = options.output
    if output is None:
        output = options.runs[0] / "report" if len(options.runs) == 1 else Path("report")
    made = report(options.runs, output)
    lines = [f"{made.page}: {counted(len(made.runs), 'run')}, {counted(len(made.pictures), 'PNG')} beside it"]
    lines += [f"  {run.label}: {words}" for run in made.runs for words in run.notes]
    lines += [f"  {run.label}, step {step}: {words}" for run in made.runs for step, words in run.alarms]
    return made.as_json(), "\n".join(lines)


def add_report_command(add: Callable[..., argparse.ArgumentParser]) -> None:
    """`add` makes one command."""
    raw = argparse.RawDescriptionHelpFormatter
    looks = "make a page of one or several runs: curves, depth, what differs"
    command = add("report", help=looks, epilog=REPORT, formatter_class=raw, allow_abbrev=False)
    command.add_argument("runs", metavar="RUN", type=path_argument, nargs="+")
    where = "default: RUN/report of one run, ./report of several"
    command.add_argument("--output", type=path_argument, metavar="FOLDER", help=where)
    command.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
