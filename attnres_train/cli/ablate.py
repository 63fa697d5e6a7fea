"""`attnres ablate`: its options, and what it prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from attnres_train.ablate.grid import GRID_HELP, RunGrid, read_grid
from attnres_train.cli.command import Answer, Command
from attnres_train.errors import ExitCode, Refused, refuse
from attnres_train.paths import path_argument

ABLATE = f"""\
Runs that differ in few keys, each in a folder of its own, and a report of what the difference makes. All
configurations are checked before any run starts. Run again, it skips what is done and goes on with what was
interrupted; SIGTERM or SIGINT saves and ends.

  attnres ablate configs/ablation/state_of_the_union.toml
  attnres ablate configs/ablation/state_of_the_union.toml --report-only    of what is there, also while runs go on

The grid file:

{GRID_HELP}
Out come FOLDER/report/index.html, results.md, results.json and PNGs. Exit status: 0 all done, 1 a run failed (the
others went on), 2 refused before any run, 3 stopped on a signal.
"""


def _ablate(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    """Run what is not done and write the report.

    Raises Refused where the grid or one of its configurations is wrong, and where another ablate runs in its folder.
    """
    from attnres_train.ablate.results import results_of  # imports numpy and plotly
    from attnres_train.ablate.write import write_results

    grid = read_grid(options.grid)
    code = ExitCode.DONE if options.report_only else _run(grid)
    if not grid.folder.is_dir():
        raise refuse("folder", f"there is no {grid.folder}", "run the grid first, without --report-only")
    found = write_results(grid, results_of(grid))
    return Answer(found, _text(found), code)


def _run(grid: RunGrid) -> ExitCode:
    from attnres_train.ablate.runner import Runner
    from attnres_train.ablate.state import check_all
    from attnres_train.observe.claim import claim_run_folder, is_claimed

    checked = check_all(grid)
    try:
        grid.folder.mkdir(parents=True, exist_ok=True)
        lock = claim_run_folder(grid.folder)
    except OSError as error:
        raise refuse("folder", f"{grid.folder} cannot be made: {error.strerror}", "choose another folder") from None
    except Refused:
        if not is_claimed(grid.folder):
            raise
        message = f"another ablate runs in {grid.folder}"
        raise refuse("folder", message, "wait until it has ended; --report-only reports what is there") from None
    with lock:
        return Runner(grid, lambda line: print(line, file=sys.stderr, flush=True)).run(checked)


def _text(found: Mapping[str, Any]) -> str:
    lines = [f"{found['page']}, with results.md and results.json beside it"]
    for cell in found["cells"]:
        loss, where = cell["loss"], f"{cell['case']}{', ' * bool(cell['setting'])}{cell['setting']}"
        words = "no run finished" if loss is None else f"validation loss {loss['mean']:.4f}{_half(loss)}, n {loss['n']}"
        if (more := cell["advantage"]) is not None:
            words += f"; {found['reference']} needs {more['mean']:.3f} times the compute, n {more['n']}"
        lines.append(f"  {where}: {words}")
    lines += [f"  not finished: {words}" for words in found["unfinished"]]
    return "\n".join(lines)


def _half(one: Mapping[str, Any]) -> str:
    return "" if one["high"] is None else f" ± {one['high'] - one['mean']:.4f}"


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("grid", metavar="GRID.toml", type=path_argument)
    command.add_argument("--report-only", action="store_true", help="start nothing; report what is there")


COMMAND = Command(
    name="ablate",
    help="run a grid of configurations and compare them, with intervals over seeds",
    answer=_ablate,
    options=_options,
    epilog=ABLATE,
)
