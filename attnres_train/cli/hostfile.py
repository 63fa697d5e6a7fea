"""`attnres hostfile`: whether these are the nodes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from attnres_train.cli.command import Answer, Command
from attnres_train.launch.hostfile import Host, read_hostfile
from attnres_train.launch.names import resolve_all
from attnres_train.paths import path_argument
from attnres_train.words import counted

HOSTFILE = """\
Holds a hostfile (`host slots=N` a line) against its grammar, and resolves its names.

  attnres hostfile hosts.txt
"""


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("path", metavar="FILE", type=path_argument)


def _hostfile(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    """What a sound hostfile says."""
    path, hosts = options.path, read_hostfile(options.path)
    resolve_all(hosts)
    ranks = sum(host.slots for host in hosts)
    lines = [f"{path}: {counted(len(hosts), 'node')}, {counted(ranks, 'rank')}", *map(_line, range(len(hosts)), hosts)]
    return Answer({"hosts": [host._asdict() for host in hosts], "ranks": ranks}, "\n".join(lines))


def _line(number: int, host: Host) -> str:
    return f"  node {number}: {host.name}, {counted(host.slots, 'rank')}"


COMMAND = Command(
    name="hostfile",
    help="hold a hostfile against its grammar, every fault with its line",
    answer=_hostfile,
    options=_options,
    epilog=HOSTFILE,
)
