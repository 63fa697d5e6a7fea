"""`attnres plan`: its options, and what it prints."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from attnres_train.cli.command import OVERRIDES, Answer, Command, add_configuration
from attnres_train.config.load import load, load_checked
from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem, Refused
from attnres_train.paths import path_argument
from attnres_train.plan import as_json, plan
from attnres_train.plan.advice_text import advice_json, advice_text
from attnres_train.plan.advise import advise
from attnres_train.plan.device_file import find_machine
from attnres_train.plan.devices import devices
from attnres_train.plan.speeds import Machine
from attnres_train.plan.text import plan_text


def _options(command: argparse.ArgumentParser) -> None:
    add_configuration(command)
    names = ", ".join(devices())
    device = f"predict seconds on this device ({names}), or on the machine of a file that `attnres doctor` measured"
    command.add_argument("--device", metavar="NAME|FILE", help=device)
    share = "share of a named device's peak that matrix products reach; default 0.65 in bf16, 0.8 in fp32"
    command.add_argument("--efficiency", type=float, metavar="SHARE", help=share)
    command.add_argument(
        "--draw",
        type=path_argument,
        metavar="FILE.png",
        help="a picture of the schedule; with --advise, of the fastest",
    )
    ranks = "try every layout of --world N devices: the fastest, and why others are refused"
    command.add_argument("--advise", action="store_true", help=ranks)


def _plan(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    """The plan, or the advice."""
    if options.draw is not None:
        from attnres_train.plan.draw import check_picture

        check_picture(options.draw)
    if options.advise:  # the layout of the file need not be sound
        return _advice(options, load(options.config, overrides).config)
    loaded = load_checked(options.config, overrides, options.world, "plan")
    planned = plan(loaded.config, options.world, machine=_machine(options, loaded.config))
    if options.draw is not None:
        from attnres_train.plan.draw import draw_schedule  # imports matplotlib

        draw_schedule(planned, options.draw)
    notes = [f"  note: {note}" for note in (*loaded.notes, *_drawn(options.draw))]
    text = "\n".join([plan_text(planned, str(options.config)), *([""] if notes else []), *notes])
    return Answer(as_json(planned) | {"notes": list(loaded.notes)}, text)


def _machine(options: argparse.Namespace, config: RunConfig) -> Machine | None:
    """The machine that the command line names, if any."""
    if options.device is not None:
        return find_machine(options.device, config.training.precision, options.efficiency)
    for flag, value in (("--efficiency", options.efficiency), ("--draw", options.draw), ("--advise", options.advise)):
        if value is not None and value is not False:
            raise Refused(Problem(flag, "goes with --device", "name a device, such as --device h100-sxm"))
    return None


def _advice(options: argparse.Namespace, config: RunConfig) -> Answer:
    machine = _machine(options, config)
    if options.world is None or machine is None:
        raise Refused(Problem("--advise", "needs a number of devices", "write --world N"))
    advice = advise(config, options.world, machine)
    if options.draw is not None and advice.choices:
        from attnres_train.plan.draw import draw_schedule  # imports matplotlib

        draw_schedule(advice.choices[0].plan, options.draw)
    drawn = _drawn(options.draw if advice.choices else None)
    return Answer(advice_json(advice), "\n".join([advice_text(advice, str(options.config)), *drawn]))


def _drawn(picture: Path | None) -> list[str]:
    return [] if picture is None else [f"the schedule of one replica is drawn in {picture}"]


COMMAND = Command(
    name="plan",
    help="print parameters, stages, wire, memory, time and first rates",
    answer=_plan,
    options=_options,
    epilog=OVERRIDES.format(command="plan"),
    usage="attnres plan CONFIG.toml [--world N] [--device NAME|FILE] [--draw FILE.png] [--advise] [--json] "
    "[--section.key value ...]",
    describes=True,
    own_flags=("--world", "--device", "--efficiency", "--draw", "--advise"),
)
