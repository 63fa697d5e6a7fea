"""The console command `attnres`: check and plan a configuration, look into a run or a machine, compare runs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from attnres_train.cli_ablate import add_ablate_command, run_ablate
from attnres_train.cli_doctor import add_doctor_commands, doctor_report, hostfile_report
from attnres_train.cli_import import IMPORT_FLAGS, add_import_command, import_report
from attnres_train.cli_init import add_init_command, init_report
from attnres_train.cli_inspect import inspect, inspect_text
from attnres_train.cli_plan import PLAN_FLAGS, PLAN_USAGE, add_plan_options, plan_report
from attnres_train.cli_report import add_report_command, run_report
from attnres_train.cli_verify import problems_of, verify, verify_text
from attnres_train.config.load import COMMAND_LINE, DEFAULT, Loaded, Purpose, load, load_checked
from attnres_train.config.overrides import separate
from attnres_train.config.resolve import run_folder
from attnres_train.depth.describe import backend_in_words, default_device_type
from attnres_train.entry import quietly
from attnres_train.errors import ExitCode, Problem, Refused
from attnres_train.observe.claim import SECONDS_TO_END, refuse_in_use
from attnres_train.paths import path_argument
from attnres_train.plan.page import counted
from attnres_train.strict_json import dumps

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

_OVERRIDES = """\
Any key of the file can be given on the command line, where it wins:

  attnres {command} configs/quickstart.toml --training.steps 200 --optimizer.learning_rate=1e-3
  attnres {command} configs/quickstart.toml --parallel.pipeline 2 --parallel.layers_per_stage "[3, 5]"
  attnres {command} configs/quickstart.toml --optimizer.clip_grad_norm none

`configs/reference.toml` lists every key. Exit status: 0 sound, 2 refused.
"""

_INSPECT = """\
Reads config.toml, the end of metrics.jsonl and the manifests of checkpoints; no weights.

  attnres inspect runs/quickstart
  attnres inspect configs/quickstart.toml                which depth backend runs on this machine
  attnres inspect runs/quickstart/checkpoints/step-00000100 --json
"""

_JSON_HELP = "print one JSON object and nothing else"
_Raw = argparse.RawDescriptionHelpFormatter
_OWN_FLAGS = ("--world", "--idle", "--json", "--help", "--device-file", *PLAN_FLAGS, *IMPORT_FLAGS)


class Told(Refused):
    """A refusal whose problems have been printed."""


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
    return quietly(lambda: _command(list(sys.argv[1:] if argv is None else argv)))


def _command(arguments: list[str]) -> int:
    if not arguments:
        _parser().print_help()
        sys.stdout.flush()
        print("\ncommand line: no command\n    -> name one of these", file=sys.stderr)
        return ExitCode.REFUSED
    try:
        return _run(arguments)
    except Told:
        return ExitCode.REFUSED
    except Refused as refused:
        if "--json" in arguments:
            _print_json({"problems": _problems_json(refused.problems)})
        else:
            title = counted(len(refused.problems), "problem")
            print(f"{title}\n\n" + "\n".join(map(str, refused.problems)), file=sys.stderr)
        return ExitCode.REFUSED


def _run(arguments: list[str]) -> ExitCode:
    has_overrides = arguments[0] in ("check", "plan", "doctor", "import")
    own, overrides = separate(arguments, _OWN_FLAGS) if has_overrides else (arguments, [])
    options = _parser().parse_args(own)
    if options.command == "inspect":
        if options.path.suffix == ".toml":
            _inspect_configuration(load_checked(options.path, [], None, "plan"), options)
        else:
            _inspect(options.path, options.json)
    elif options.command == "verify":
        _verify(options.path, options.json)
    elif options.command == "report":
        _show(*run_report(options), options.json)
    elif options.command == "ablate":
        found, text, code = run_ablate(options)
        _show(found, text, options.json)
        return code
    elif options.command == "doctor":
        _show(*doctor_report(options, overrides), options.json)
    elif options.command == "init":
        _show(*init_report(options), options.json)
    elif options.command == "hostfile":
        _show(*hostfile_report(options.path), options.json)
    elif options.command == "import":
        _show(*import_report(options, overrides), options.json)
    elif options.command == "check":
        if options.idle:
            _refuse_in_use(options.config, overrides)
        _check(_load(options, overrides, "check"), options)
    else:
        _show(*plan_report(options, overrides), options.json)
    return ExitCode.DONE


def _refuse_in_use(path: Path, overrides: list[str]) -> None:
    """Before what the living run makes hard to judge, such as what is left to train."""
    try:
        config = load(path, overrides).config
    except Refused:
        return  # told with everything else that is wrong
    refuse_in_use(run_folder(config, path), SECONDS_TO_END)


def _load(options: argparse.Namespace, overrides: list[str], purpose: Purpose) -> Loaded:
    return load_checked(options.config, overrides, options.world, purpose)


def _check(loaded: Loaded, options: argparse.Namespace) -> None:
    notes = _notes(loaded)
    if options.json:
        _print_json({"problems": [], "notes": notes})
        return
    origins = list(loaded.origins.values())
    given, defaults = origins.count(COMMAND_LINE), origins.count(DEFAULT)
    world = loaded.config.parallel.model_ranks if options.world is None else options.world
    print(f"{options.config}: no problem on {counted(world, 'rank')}")
    from_file = len(origins) - given - defaults
    told = f"{given} from the command line, {counted(defaults, 'default')}"
    print(f"  {counted(from_file, 'key')} from the file, {told}")
    for note in notes:
        print(f"  note: {note}")


def _notes(loaded: Loaded) -> list[str]:
    """What is no problem and yet worth a line."""
    if loaded.config.data.train is None:
        return [*loaded.notes, "enough for a plan; training also needs data.train"]
    from attnres_train.corpora import open_corpora  # imports numpy, which a plan can do without

    return [*loaded.notes, *open_corpora(loaded.config).notes]


def _show(found: dict[str, object], text: str, json_wanted: bool) -> None:
    if json_wanted:
        _print_json(found)
    else:
        print(text)


def _inspect(path: Path, json_wanted: bool) -> None:
    found = inspect(path)
    if json_wanted:
        _print_json(found)
    else:
        print(inspect_text(found))


def _verify(path: Path, json_wanted: bool) -> None:
    found = verify(path)
    if json_wanted:
        _print_json({"checkpoints": found, "problems": _problems_json(problems_of(found))})
    elif whole := [entry for entry in found if not entry["problems"]]:
        print(verify_text(whole))
    if problems_of(found):
        raise Told(problems_of(found)) if json_wanted else Refused(problems_of(found))


def _inspect_configuration(loaded: Loaded, options: argparse.Namespace) -> None:
    """What only the machine it runs on can say of a configuration: which implementations it will use."""
    config = loaded.config
    found = {
        "kind": "configuration",
        "path": str(options.path.absolute()),
        "depth_backend": backend_in_words(config.residual, default_device_type(), config.training.precision),
    }
    if options.json:
        _print_json(found)
    else:
        print(f"configuration {found['path']}\n\n  depth backend here: {found['depth_backend']}")


def _problems_json(problems: Sequence[Problem]) -> list[dict[str, str]]:
    return [{"key": p.key, "message": p.message, "remedy": p.remedy} for p in problems]


def _print_json(value: object) -> None:
    print(dumps(value, indent=1))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="attnres", description=_DESCRIPTION, formatter_class=_Raw, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = _add_configuration_command(
        commands, "check", "hold a configuration against every rule, all problems at once"
    )
    command.add_argument("--idle", action="store_true", help="refuse also where a run is writing to the run folder")
    add_plan_options(
        _add_configuration_command(commands, "plan", "print parameters, stages, wire, memory, time and first rates")
    )
    looks = "show what a run folder or a checkpoint holds, or which depth backend a configuration uses here"
    command = commands.add_parser("inspect", help=looks, epilog=_INSPECT, formatter_class=_Raw, allow_abbrev=False)
    command.add_argument("path", metavar="RUN|CHECKPOINT|CONFIG.toml", type=path_argument)
    command.add_argument("--json", action="store_true", help=_JSON_HELP)
    looks = "read every file of a checkpoint, or of each one of a run, against its checksum"
    command = commands.add_parser("verify", help=looks, formatter_class=_Raw, allow_abbrev=False)
    command.add_argument("path", metavar="RUN|CHECKPOINT", type=path_argument)
    command.add_argument("--json", action="store_true", help=_JSON_HELP)
    add_report_command(commands.add_parser)
    add_ablate_command(commands.add_parser)
    add_doctor_commands(commands.add_parser, _ranks)
    add_import_command(commands.add_parser)
    add_init_command(commands.add_parser, _ranks)
    return parser


def _add_configuration_command(commands: argparse._SubParsersAction[_Parser], name: str, purpose: str) -> _Parser:
    command = commands.add_parser(
        name,
        help=purpose,
        description=f"{purpose.capitalize()}.",
        epilog=_OVERRIDES.format(command=name),
        usage=f"attnres {name} CONFIG.toml [--world N] {PLAN_USAGE if name == 'plan' else '[--idle] '}[--json] "
        "[--section.key value ...]",
        formatter_class=_Raw,
        allow_abbrev=False,
    )
    command.add_argument("config", metavar="CONFIG.toml", type=path_argument)
    command.add_argument("--world", type=_ranks, metavar="N", help="ranks; default: one replica of the model")
    command.add_argument("--json", action="store_true", help=_JSON_HELP)
    return command


def _ranks(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks, 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
