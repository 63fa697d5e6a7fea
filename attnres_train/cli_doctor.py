"""`attnres doctor` and `attnres hostfile`: their options, and what they print."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attnres_train.config.load import load_checked
from attnres_train.launch.hostfile import Host, read_hostfile
from attnres_train.launch.names import resolve_all
from attnres_train.paths import path_argument
from attnres_train.plan.page import counted

DOCTOR = """\
Versions, devices, links, clock and disk of this machine, and the speed of an all-reduce and of send and receive
between its ranks; with a configuration beside what every step needs of them.

  attnres doctor
  attnres doctor my.toml --world 8
  attnres doctor my.toml --device-file here.toml    measures what `attnres plan my.toml --device here.toml` reads
"""

HOSTFILE = """\
Holds a hostfile (`host slots=N` a line) against its grammar, and resolves its names.

  attnres hostfile hosts.txt
"""


def doctor_report(options: argparse.Namespace, overrides: Sequence[str]) -> tuple[dict[str, Any], str]:
    """What the doctor finds, as an object and as text."""
    from attnres_train.doctor import doctor, doctor_text  # imports torch

    loaded = None if options.config is None else load_checked(options.config, overrides, options.world, "plan")
    found = doctor(loaded, options.world, options.device_file)
    return found, doctor_text(found)


def hostfile_report(path: Path) -> tuple[dict[str, Any], str]:
    """What a sound hostfile says."""
    hosts = read_hostfile(path)
    resolve_all(hosts)
    ranks = sum(host.slots for host in hosts)
    lines = [f"{path}: {counted(len(hosts), 'node')}, {counted(ranks, 'rank')}", *map(_line, range(len(hosts)), hosts)]
    return {"hosts": [host._asdict() for host in hosts], "ranks": ranks}, "\n".join(lines)


def _line(number: int, host: Host) -> str:
    return f"  node {number}: {host.name}, {counted(host.slots, 'rank')}"


def add_doctor_commands(add: Callable[..., argparse.ArgumentParser], ranks: Callable[[str], int]) -> None:
    """`add` makes one command; `ranks` reads a number of them."""
    raw = argparse.RawDescriptionHelpFormatter
    looks = "what this machine is, and how fast its ranks talk, beside what a step needs"
    command = add("doctor", help=looks, epilog=DOCTOR, formatter_class=raw, allow_abbrev=False)
    command.add_argument("config", metavar="CONFIG.toml", type=path_argument, nargs="?")
    command.add_argument("--world", type=ranks, metavar="N", help="ranks; default: one replica of the model, or 2")
    command.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    measures = "measure this machine at the configuration's shapes, and write its speeds there for `attnres plan`"
    command.add_argument("--device-file", metavar="FILE", type=path_argument, help=measures)
    looks = "hold a hostfile against its grammar, every fault with its line"
    command = add("hostfile", help=looks, epilog=HOSTFILE, formatter_class=raw, allow_abbrev=False)
    command.add_argument("path", metavar="FILE", type=path_argument)
    command.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
