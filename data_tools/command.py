"""What the tools share on the command line: arguments, the report, progress, exit codes."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from attnres_train.errors import ExitCode, Refused

Report = dict[str, Any]
"""What a tool found and did; printed line by line, or as JSON."""


def tool_parser(name: str, description: str) -> argparse.ArgumentParser:
    """A parser for `python -m data_tools.NAME` with the arguments that every tool has."""
    parser = argparse.ArgumentParser(
        prog=f"python -m data_tools.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object on stdout")
    return parser


def add_overwrite_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace outputs that exist")


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """The inputs, where their text is, and what to do about records that cannot be read."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="files (.jsonl: one JSON object a line; .txt: one document a file; plain or .gz, .xz, .bz2), "
        "folders of such files, or patterns",
    )
    parser.add_argument("--text-key", default="text", help="key of the text in a JSON object (default: text)")
    parser.add_argument(
        "--bad-records",
        choices=("stop", "skip"),
        default="stop",
        help="what to do about a record that is not JSON, has no text or is not UTF-8: stop and write "
        "nothing (default), or skip it and report file, line and reason",
    )
    parser.add_argument(
        "--max-bad",
        type=whole_number,
        metavar="N",
        help="with --bad-records skip: stop after all when more than N records are bad",
    )


def whole_number(text: str) -> int:
    """An argument type: an integer from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def positive_number(text: str) -> int:
    """An argument type: an integer from 1 on."""
    number = whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def run_tool(
    parser: argparse.ArgumentParser,
    tool: Callable[[argparse.Namespace], Report],
    argv: Sequence[str] | None,
) -> int:
    """Parse `argv`, run `tool`, print its report; returns the exit code."""
    arguments = parser.parse_args(argv)
    # A polite kill unwinds like Ctrl-C, so that files written aside are removed.
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        report = tool(arguments)
    except Refused as refused:
        print(f"refused:\n{refused}", file=sys.stderr)
        if arguments.json:
            print(json.dumps({"status": "refused", "problems": [asdict(p) for p in refused.problems]}))
        return ExitCode.REFUSED
    except KeyboardInterrupt:
        print("interrupted; nothing was published", file=sys.stderr)
        return ExitCode.FAILED
    except OSError as error:
        print(f"failed: {error}", file=sys.stderr)
        return ExitCode.FAILED
    finally:
        signal.signal(signal.SIGTERM, previous)
    print(json.dumps(report, ensure_ascii=False) if arguments.json else "\n".join(report_lines(report)))
    return ExitCode.DONE


def report_lines(report: Report) -> Iterator[str]:
    """A report for people: one `name: value` a line, lists indented below their name."""
    for name, value in report.items():
        label = name.replace("_", " ")
        if isinstance(value, list):
            yield f"{label}:" if value else f"{label}: none"
            for item in value:
                yield "  " + (", ".join(f"{k} {v}" for k, v in item.items()) if isinstance(item, dict) else str(item))
        else:
            yield f"{label}: {_words(value)}"


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


@contextmanager
def progress(label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A bar over bytes on stderr, only where that is a terminal; gives the function that advances it."""
    console = Console(stderr=True)
    columns = (
        "{task.description}",
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=total_bytes)
        yield lambda amount: bar.advance(task, amount)
