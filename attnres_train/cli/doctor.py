"""`attnres doctor`: its options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from attnres_train.cli.command import JSON, Answer, Command, option, ranks
from attnres_train.config.load import load_checked
from attnres_train.paths import path_argument

_EPILOG = """\
Versions, devices, links, clock and disk of this machine, and the speed of an all-reduce and of send and receive
between its ranks; with a configuration beside what every step needs of them.

  attnres doctor
  attnres doctor my.toml --world 8
  attnres doctor my.toml --device-file here.toml    measures what `attnres plan my.toml --device here.toml` reads
"""


def answer(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    """What the doctor finds."""
    from attnres_train.doctor.machine import doctor, doctor_text  # imports torch

    loaded = None if options.config is None else load_checked(options.config, overrides, options.world, "plan")
    found = doctor(loaded, options.world, options.device_file)
    return Answer(found, doctor_text(found))


_MEASURES = "measure this machine at the configuration's shapes, and write its speeds there for `attnres plan`"
COMMAND = Command(
    "doctor",
    "what this machine is, and how fast its ranks talk, beside what a step needs",
    (
        option("config", metavar="CONFIG.toml", type=path_argument, nargs="?"),
        option("--world", type=ranks, metavar="N", help="ranks; default: one replica of the model, or 2"),
        JSON,
        option("--device-file", metavar="FILE", type=path_argument, help=_MEASURES),
    ),
    answer,
    epilog=_EPILOG,
    overrides=True,
)
