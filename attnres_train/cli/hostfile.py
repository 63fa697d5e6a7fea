"""`attnres hostfile`: a hostfile held against its grammar."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from attnres_train.cli.command import JSON, Answer, Command, option
from attnres_train.launch.hostfile import read_hostfile
from attnres_train.launch.names import resolve_all
from attnres_train.paths import path_argument
from attnres_train.words import counted

_EPILOG = """\
Holds a hostfile (`host slots=N` a line) against its grammar, and resolves its names.

  attnres hostfile hosts.txt
"""


def answer(options: argparse.Namespace, _overrides: Sequence[str]) -> Answer:
    """What a sound hostfile says."""
    hosts = read_hostfile(options.path)
    resolve_all(hosts)
    total = sum(host.slots for host in hosts)
    lines = [f"{options.path}: {counted(len(hosts), 'node')}, {counted(total, 'rank')}"]
    lines += [f"  node {node}: {host.name}, {counted(host.slots, 'rank')}" for node, host in enumerate(hosts)]
    return Answer({"hosts": [host._asdict() for host in hosts], "ranks": total}, "\n".join(lines))


COMMAND = Command(
    "hostfile",
    "hold a hostfile against its grammar, every fault with its line",
    (option("path", metavar="FILE", type=path_argument), JSON),
    answer,
    epilog=_EPILOG,
)
