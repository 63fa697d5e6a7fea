"""What a command is: its words, its options, and one function from them to an answer. `cli` prints and exits."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnres_train.errors import ExitCode, Problem
from attnres_train.paths import path_argument

_OVERRIDES = """\
Any key of the file can be given on the command line, where it wins:

  attnres {command} configs/quickstart.toml --training.steps 200 --optimizer.learning_rate=1e-3
  attnres {command} configs/quickstart.toml --parallel.pipeline 2 --parallel.layers_per_stage "[3, 5]"
  attnres {command} configs/quickstart.toml --optimizer.clip_grad_norm none

`configs/reference.toml` lists every key. Exit status: 0 sound, 2 refused.
"""


@dataclass(frozen=True)
class Answer:
    """What a command found: an object for `--json`, the same as text, and the exit code."""

    found: Mapping[str, Any]
    text: str
    code: ExitCode = ExitCode.DONE
    problems: Sequence[Problem] = ()
    """Told as a refusal is, behind the text; the object holds them itself."""


@dataclass(frozen=True)
class Option:
    """One argument of argparse's `add_argument`."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Command:
    """One of `attnres`'s commands."""

    name: str
    looks: str
    """What it does, in a line of the list of commands."""
    options: Sequence[Option]
    answer: Callable[[argparse.Namespace, Sequence[str]], Answer]
    """From the options and the overrides of the configuration, of which there are none unless it takes them.

    Raises Refused.
    """
    epilog: str | None = None
    description: str | None = None
    usage: str | None = None
    overrides: bool = False
    """Whether it takes `--section.key value`."""

    def add_to(self, commands: argparse._SubParsersAction[Any]) -> None:
        """Declare it to argparse."""
        parser = commands.add_parser(
            self.name,
            help=self.looks,
            description=self.description,
            epilog=self.epilog,
            usage=self.usage,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for option in self.options:
            parser.add_argument(*option.names, **option.settings)


def option(*names: str, **settings: Any) -> Option:
    """As argparse's `add_argument` takes it."""
    return Option(names, settings)


def ranks(text: str) -> int:
    """A number of ranks, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks, 1 or more")
    return int(text)


CONFIG = option("config", metavar="CONFIG.toml", type=path_argument)
WORLD = option("--world", type=ranks, metavar="N", help="ranks; default: one replica of the model")
JSON = option("--json", action="store_true", help="print one JSON object and nothing else")


def command_of_configuration(
    name: str, purpose: str, own_usage: str, own: Sequence[Option], answer: Callable[..., Answer]
) -> Command:
    """A command that takes a configuration, a number of ranks and any key beside `own`, options that it has alone."""
    return Command(
        name,
        purpose,
        (CONFIG, WORLD, JSON, *own),
        answer,
        epilog=_OVERRIDES.format(command=name),
        description=f"{purpose.capitalize()}.",
        usage=f"attnres {name} CONFIG.toml [--world N] {own_usage} [--json] [--section.key value ...]",
        overrides=True,
    )
