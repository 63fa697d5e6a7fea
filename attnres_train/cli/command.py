"""What a command of `attnres` is, and what it answers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from attnres_train.errors import ExitCode, Problem, Refused
from attnres_train.paths import path_argument

RAW = argparse.RawDescriptionHelpFormatter


@dataclass(frozen=True)
class Answer:
    """What a command found: an object for `--json`, text for people (empty prints nothing), and the exit code.

    `problems` are printed as a refusal's are, behind the text; in the object they stand already.
    """

    found: Mapping[str, Any]
    text: str
    code: ExitCode = ExitCode.DONE
    problems: Sequence[Problem] = ()


@dataclass(frozen=True)
class Command:
    """One command; `answer` is given the options and the overrides, and raises Refused."""

    name: str
    help: str
    answer: Callable[[argparse.Namespace, Sequence[str]], Answer]
    options: Callable[[argparse.ArgumentParser], None]
    epilog: str | None = None
    usage: str | None = None
    describes: bool = False
    """Whether `help` heads the page of the command, too."""
    own_flags: tuple[str, ...] | None = None
    """Its flags but `--json` and `--help`, where it takes overrides (`--section.key value`); else None."""

    def add_to(self, commands: Any) -> None:
        """Add it to argparse's subcommands."""
        parser = commands.add_parser(
            self.name,
            help=self.help,
            description=f"{self.help.capitalize()}." if self.describes else None,
            epilog=self.epilog,
            usage=self.usage,
            formatter_class=RAW,
            allow_abbrev=False,
        )
        self.options(parser)
        parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


class Parser(argparse.ArgumentParser):
    """Refuses like everything else here, so that `--json` holds for a wrong command line too."""

    def error(self, message: str) -> NoReturn:
        remedy = f"`{self.prog} -h` shows examples"
        if unknown := re.match(r"argument COMMAND: invalid choice: ('.*?') \(choose from (.*)\)", message):
            message = f"there is no command {unknown[1]}, but {unknown[2]}"
            remedy = "name one of these; a training is started by launch/torchrun.sh"
        raise Refused(Problem("command line", message, remedy))


OVERRIDES = """\
Any key of the file can be given on the command line, where it wins:

  attnres {command} configs/quickstart.toml --training.steps 200 --optimizer.learning_rate=1e-3
  attnres {command} configs/quickstart.toml --parallel.pipeline 2 --parallel.layers_per_stage "[3, 5]"
  attnres {command} configs/quickstart.toml --optimizer.clip_grad_norm none

`configs/reference.toml` lists every key. Exit status: 0 sound, 2 refused.
"""


def add_configuration(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """CONFIG.toml, and `--world N`."""
    default = "one replica of the model, or 2" if optional else "one replica of the model"
    parser.add_argument("config", metavar="CONFIG.toml", type=path_argument, nargs="?" if optional else None)
    parser.add_argument("--world", type=ranks, metavar="N", help=f"ranks; default: {default}")


def ranks(text: str) -> int:
    """A number of ranks. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks, 1 or more")
    return int(text)
