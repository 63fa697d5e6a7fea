"""The commands of `attnres`, and how what they answer is printed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from attnres_train.cli import (
    ablate,
    check,
    doctor,
    evaluate,
    export,
    generate,
    hostfile,
    imports,
    init,
    inspect,
    merge,
    plan,
    report,
    verify,
)
from attnres_train.cli.command import RAW, Answer, Command, Parser
from attnres_train.config.overrides import separate
from attnres_train.errors import ExitCode, Refused, problems_as_json
from attnres_train.strict_json import dumps
from attnres_train.words import counted

COMMANDS: tuple[Command, ...] = (
    check.COMMAND,
    plan.COMMAND,
    inspect.COMMAND,
    verify.COMMAND,
    report.COMMAND,
    ablate.COMMAND,
    doctor.COMMAND,
    hostfile.COMMAND,
    evaluate.COMMAND,
    generate.COMMAND,
    export.COMMAND,
    imports.COMMAND,
    merge.COMMAND,
    init.COMMAND,
)

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
  attnres evaluate runs/quickstart                   its loss, by position and by corpus
  attnres generate runs/quickstart --prompt "..."     a text that goes on
  attnres export runs/quickstart my-model            a folder that transformers and other tools open
  attnres import SmolLM2-135M my.toml                begin from a model that is there; or go on from DeepSpeed's
  attnres merge runs/my/checkpoints/step-* my-mean   a checkpoint whose weights are their mean

Training itself starts one process a rank (`ablate` does so by launch/torchrun.sh):

  torchrun --nproc-per-node 8 -m attnres_train.train configs/quickstart.toml
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is an `ExitCode`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        _parser().print_help()
        sys.stdout.flush()
        print("\ncommand line: no command\n    -> name one of these", file=sys.stderr)
        return ExitCode.REFUSED
    in_json = "--json" in arguments
    try:
        answer = _answer(arguments)
    except Refused as refused:
        _tell(Answer({"problems": problems_as_json(refused.problems)}, "", problems=refused.problems), in_json)
        return ExitCode.REFUSED
    _tell(answer, in_json)
    return ExitCode.REFUSED if answer.problems else answer.code


def _answer(arguments: list[str]) -> Answer:
    command = next((c for c in COMMANDS if c.name == arguments[0]), None)
    overrides: Sequence[str] = []
    if command is not None and command.own_flags is not None:
        arguments, overrides = separate(arguments, ("--json", "--help", *command.own_flags))
    options = _parser().parse_args(arguments)
    return next(c for c in COMMANDS if c.name == options.command).answer(options, overrides)


def _tell(answer: Answer, in_json: bool) -> None:
    if in_json:
        print(dumps(answer.found, indent=1))
        return
    if answer.text:
        print(answer.text)
    if answer.problems:
        title = counted(len(answer.problems), "problem")
        print(f"{title}\n\n" + "\n".join(map(str, answer.problems)), file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="attnres", description=_DESCRIPTION, formatter_class=RAW, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_to(commands)
    return parser
