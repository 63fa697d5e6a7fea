"""What the tools share on the command line: arguments, the report, exit codes."""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from attnres_train.console_encoding import print_every_character
from attnres_train.data.files import Existing
from attnres_train.errors import ExitCode, Refused, problems_as_json, refuse
from attnres_train.strict_json import dumps
from data_tools.bad_records import BadRecords
from data_tools.pieces import MIB
from data_tools.pool import available_cpus
from data_tools.records import Reading

Report = dict[str, Any]
"""What a tool found and did; printed line by line, or as JSON."""
RAW = argparse.RawDescriptionHelpFormatter


class ToolParser(argparse.ArgumentParser):
    """The command line of a tool, with the arguments that several tools share."""

    def add_pair(self) -> None:
        """The pair to look at."""
        self.add_argument("prefix", metavar="PREFIX", help="the pair's path without .bin or .idx")

    def add_workers(self, verb: str) -> None:
        """How many processes `verb`."""
        what = f"processes that {verb} (default: one a CPU)"
        self.add_argument("--workers", type=positive_number, default=available_cpus(), metavar="N", help=what)

    def add_number(self, name: str, default: int, what: str) -> None:
        self.add_argument(name, type=positive_number, default=default, metavar="N", help=f"{what} (default: {default})")

    def add_keys(self, name: str, what: str) -> None:
        """An option that may be repeated."""
        self.add_argument(name, action="append", metavar="KEY", help=what)

    def add_overwrite(self, otherwise: Existing) -> None:
        """What to do about outputs that exist, as `existing`: replace them, or `otherwise`."""
        what = "replace outputs that exist"
        self.add_argument(
            "--overwrite", action="store_const", dest="existing", const="replace", default=otherwise, help=what
        )

    def add_inputs(self) -> None:
        """The inputs, where their text is, and what to do about records that cannot be read."""
        self.add_argument(
            "inputs",
            nargs="+",
            metavar="INPUT",
            help="files (.jsonl: one JSON object a line; .parquet: one row a document; .txt: one document a file; each "
            "plain or .gz, .zst, .bz2, .xz), folders of such files, patterns, or @FILE with one of these a line",
        )
        what = "key or column of the text (default: text); given more than once, the texts are joined in that order"
        self.add_keys("--text-key", what)
        what = "between the texts of several keys, \\n for a line break and \\t for a tab (default: a blank line)"
        self.add_argument("--joiner", metavar="TEXT", help=what)
        self.add_number(
            "--longest-mib",
            4,
            "a record longer than this is a bad one; a process may need 50 times as much memory, with a "
            "tokenizer.json that is not byte-level 200 times",
        )
        self.add_argument(
            "--bad-records",
            choices=("stop", "skip"),
            default="stop",
            help="what to do about a record that is not JSON, has no text, is not UTF-8, is too long or cannot be "
            "decompressed: stop and write nothing (default), or skip it and report file, line and reason",
        )
        what = "with --bad-records skip: stop after all when more than N records are bad"
        self.add_argument("--max-bad", type=whole_number, metavar="N", help=what)


def reading_of(arguments: argparse.Namespace) -> Reading:
    """How records become documents, as the arguments say.

    Raises Refused for a key that is given twice.
    """
    keys = tuple(arguments.text_key or ("text",))
    metadata = tuple(getattr(arguments, "metadata", None) or ())
    for option, names in (("--text-key", keys), ("--metadata", metadata)):
        if twice := [name for name in names if names.count(name) > 1]:
            raise refuse(option, f"{twice[0]!r} is given more than once", "name each key once")
    if arguments.joiner is not None and len(keys) == 1:
        raise refuse("--joiner", "there is only one --text-key, so nothing is joined", "leave it out")
    joiner = "\n\n" if arguments.joiner is None else arguments.joiner.replace("\\n", "\n").replace("\\t", "\t")
    return Reading(keys, metadata, joiner, arguments.longest_mib * MIB)


def bad_records_of(arguments: argparse.Namespace, open_listing: Callable[[], BinaryIO] | None = None) -> BadRecords:
    """The policy that the arguments say. Raises Refused for a limit on what is not allowed at all."""
    if arguments.max_bad is not None and arguments.bad_records == "stop":
        raise refuse("--max-bad", "without --bad-records skip the first bad record stops the work", "pass both")
    return BadRecords(arguments.bad_records, arguments.max_bad, open_listing)


def prefix_argument(text: str) -> str:
    """The prefix of the files to write. Raises Refused for what names no files, or a folder."""
    if not text or text.endswith("/") or Path(text).name in ("", ".", ".."):
        raise refuse("--output", f"{text!r} is no prefix of file names", "give one, such as corpora/train")
    return text


def whole_number(text: str) -> int:
    """An argument type: an integer from 0 on."""
    if not re.fullmatch("[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at most 18 digits")
    return int(text)


def real_number(text: str) -> float:
    """An argument type, to be bounded."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def positive_number(text: str) -> int:
    """An argument type: an integer from 1 on."""
    number = whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


@dataclass(frozen=True)
class Tool:
    """`python -m data_tools.NAME`: work by what the options say, and its report, printed for people by `show`."""

    name: str
    description: str
    add_options: Callable[[ToolParser], object]
    work: Callable[[argparse.Namespace], Report]
    show: Callable[[Report], Iterator[str]] | None = None

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Parse `argv`, work, print the report; returns the exit code."""
        print_every_character()
        parser = ToolParser(f"python -m data_tools.{self.name}", description=self.description, formatter_class=RAW)
        parser.add_argument("--json", action="store_true", help="print the report as one JSON object on stdout")
        self.add_options(parser)
        # Intermixed, because inputs may come before and after options.
        arguments = parser.parse_intermixed_args(argv)
        # A polite kill unwinds like Ctrl-C, so that files written aside are removed.
        # A hangup that is ignored (nohup) stays ignored.
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        signals = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
        previous = [signal.signal(number, signal.default_int_handler) for number in signals]
        try:
            report = self.work(arguments)
            text = dumps(report) if arguments.json else "\n".join((self.show or report_lines)(report))
            code, words = ExitCode.DONE, ""
        except Refused as refused:
            code, words = ExitCode.REFUSED, f"refused:\n{refused}"
            text = dumps({"status": "refused", "problems": problems_as_json(refused.problems)})
        except KeyboardInterrupt:
            code, words = ExitCode.FAILED, "interrupted; nothing was published"
            text = dumps({"status": "interrupted"})
        except OSError as error:
            code, words = ExitCode.FAILED, f"failed: {error}{_remedy(error, arguments)}"
            text = dumps({"status": "failed", "error": str(error)})
        finally:
            for number, handler in zip(signals, previous, strict=True):
                signal.signal(number, handler)
        if words:
            print(words, file=sys.stderr)
        if arguments.json or not words:
            _print(text)
        return code


def _remedy(error: OSError, arguments: argparse.Namespace) -> str:
    # An error while a file is written does not name it.
    places = [getattr(arguments, name, None) for name in ("output", "train", "valid")] + ["temporary files (TMPDIR)"]
    there = "there" if error.filename else f"for {' and '.join(filter(None, places))}"
    remedies = {
        errno.ENOSPC: f"free space {there}, or write to another disk",
        errno.EDQUOT: f"free space within the quota {there}, or write to another disk",
        errno.EFBIG: "raise the limit of file sizes (ulimit -f), or write to another disk",
        errno.EACCES: "change the permissions, or name another output",
        errno.EROFS: "name an output on a disk that can be written to",
        errno.EMFILE: "raise the limit of open files (ulimit -n)",
    }
    remedy = remedies.get(error.errno or 0)
    return f"\n    -> {remedy}" if remedy else ""


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError as error:
        # Nobody listens any more (`| head`), or the disk is full; the work is done all the same, and the interpreter
        # must not flush again.
        if not isinstance(error, BrokenPipeError):
            print(f"the report cannot be printed: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


MOST_SHOWN = 20
"""Entries of a list that a report for people shows; JSON has all."""


def report_lines(report: Report) -> Iterator[str]:
    """A report for people: one `name: value` a line, lists indented below their name, `warnings` last."""
    warnings = report.get("warnings", [])
    for name, value in report.items():
        if name == "warnings":
            continue
        label = name.replace("_", " ")
        if isinstance(value, list):
            yield f"{label}:" if value else f"{label}: none"
            for item in value[:MOST_SHOWN]:
                yield "  " + _item_words(item)
            if len(value) > MOST_SHOWN:
                yield f"  and {len(value) - MOST_SHOWN:,} more"
        else:
            yield f"{label}: {_words(value)}"
    yield from (f"WARNING: {warning}" for warning in warnings)


def _item_words(item: object) -> str:
    if not isinstance(item, dict):
        return str(item)
    return ", ".join(f"{name} {value}" for name, value in item.items() if value is not None)


def _words(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
