"""`attnres doctor`: what this machine is, and how fast."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from attnres_train.cli.command import Answer, Command, add_configuration
from attnres_train.config.load import load_checked
from attnres_train.paths import path_argument

DOCTOR = """\
Versions, devices, links, clock and disk of this machine, and the speed of an all-reduce and of send and receive
between its ranks; with a configuration beside what every step needs of them.

  attnres doctor
  attnres doctor my.toml --world 8
  attnres doctor my.toml --device-file here.toml    measures what `attnres plan my.toml --device here.toml` reads
"""


def _options(command: argparse.ArgumentParser) -> None:
    add_configuration(command, optional=True)
    measures = "measure this machine at the configuration's shapes, and write its speeds there for `attnres plan`"
    command.add_argument("--device-file", metavar="FILE", type=path_argument, help=measures)


def _doctor(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    from attnres_train.doctor.look import doctor, doctor_text  # imports torch

    loaded = None if options.config is None else load_checked(options.config, overrides, options.world, "plan")
    found = doctor(loaded, options.world, options.device_file)
    return Answer(found, doctor_text(found))


COMMAND = Command(
    name="doctor",
    help="what this machine is, and how fast its ranks talk, beside what a step needs",
    answer=_doctor,
    options=_options,
    epilog=DOCTOR,
    own_flags=("--world", "--device-file"),
)
