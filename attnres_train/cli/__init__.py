"""The console command `attnres`: check and plan a configuration, look into a run or a machine, compare runs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from attnres_train.cli import ablate, check, doctor, hostfile, import_zero, init, inspect, plan, report, verify
from attnres_train.cli.command import Answer
from attnres_train.config.overrides import separate
from attnres_train.console_encoding import quietly
from attnres_train.errors import ExitCode, Problem, Refused, problems_as_json
from attnres_train.strict_json import dumps
from attnres_train.words import counted

COMMANDS = tuple(
    room.COMMAND for room in (check, plan, inspect, verify, report, ablate, doctor, hostfile, import_zero, init)
)
"""In the order of the help."""

_DESCRIPTION = """\
Pretrain transformers whose residual connection is attention over depth.

  attnres init  corpus --size 100m --ranks 8         a first configuration for a prepared corpus
  attnres check configs/quickstart.toml              is the configuration sound?
  attnres plan  configs/quickstart.toml --world 8    what does it amount to on 8 ranks?
  attnres inspect runs/quickstart                    how far is the run, which checkpoints has it?
  attnres verify runs/quickstart                     is every byte of its checkpoints as it was written?
  attnres report runs/quickstart                     how did it go? a page of curves and maps
  attnres ablate configs/ablation/state_of_the_union.toml    many runs: what does a difference make?
  attnres doctor configs/quickstart.toml             is this machine ready, and fast enough?
  attnres hostfile hosts.txt                         are these the nodes?
  attnres import deepspeed-checkpoints my.toml       go on from what DeepSpeed has trained

Training itself starts one process a rank (`ablate` does so by launch/torchrun.sh):

  torchrun --nproc-per-node 8 -m attnres_train.train configs/quickstart.toml
"""


class _Parser(argparse.ArgumentParser):
    """Refuses like everything else here, so that `--json` holds for a wrong command line too."""

    def error(self, message: str) -> NoReturn:
        remedy = f"`{self.prog} -h` shows examples"
        if unknown := re.match(r"argument COMMAND: invalid choice: ('.*?') \(choose from (.*)\)", message):
            message = f"there is no command {unknown[1]}, but {unknown[2]}"
            remedy = "name one of these; a training is started by launch/torchrun.sh"
        raise Refused(Problem("command line", message, remedy))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is an `ExitCode`, or that of a signal."""
    return quietly(lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def _run(arguments: list[str]) -> ExitCode:
    if not arguments:
        _parser().print_help()
        sys.stdout.flush()
        print("\ncommand line: no command\n    -> name one of these", file=sys.stderr)
        return ExitCode.REFUSED
    try:
        answer, json_wanted = _answer(arguments)
    except Refused as refused:
        found = {"problems": problems_as_json(refused.problems)}
        answer, json_wanted = Answer(found, "", ExitCode.REFUSED, refused.problems), "--json" in arguments
    if json_wanted:
        print(dumps(answer.found, indent=1))
        return answer.code
    if answer.text:
        print(answer.text)
    if answer.problems:
        print(f"{counted(len(answer.problems), 'problem')}\n\n" + "\n".join(map(str, answer.problems)), file=sys.stderr)
    return answer.code


def _answer(arguments: list[str]) -> tuple[Answer, bool]:
    """What the command says, and whether as JSON."""
    by_name = {command.name: command for command in COMMANDS}
    called = by_name.get(arguments[0])
    # A flag of another command that takes overrides is no key, either.
    flags = {name for command in COMMANDS if command.overrides for option in command.options for name in option.names}
    own, overrides = separate(arguments, {*flags, "--help"}) if called and called.overrides else (arguments, [])
    options = _parser().parse_args(own)
    return by_name[options.command].answer(options, overrides), options.json


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="attnres", description=_DESCRIPTION, formatter_class=raw, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_to(commands)
    return parser
