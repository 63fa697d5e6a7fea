"""The options of a launch, and the launch that they mean on this node."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from attnres_train.errors import Refused, refuse
from attnres_train.launch.commands import Launch
from attnres_train.launch.hostfile import Host, read_hostfile
from attnres_train.launch.names import DEFAULT_PORT, Master, free_port, is_known, is_own, parse_master, resolve
from attnres_train.words import counted

_OF_SCRIPTS: Mapping[str, Mapping[str, Any]] = {
    "--ranks": {"type": int, "default": 1},
    "--nodes": {"type": int, "default": 1},
    "--node-rank": {"type": int},
    "--master": {},
    "--hostfile": {},
    "--no_ssh": {"action": "store_true"},
    "--join-seconds": {"type": float, "default": 300},
}
SCRIPT_FLAGS = (*_OF_SCRIPTS, "--node_rank")
"""Of the launch scripts, which write the last one with a hyphen; all else that begins so is an override."""


def read_options(arguments: Sequence[str], description: str | None) -> argparse.Namespace:
    """The options of a launch; argparse ends the process where they are wrong."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("launcher", choices=("torchrun", "deepspeed"))
    for flag, settings in _OF_SCRIPTS.items():
        parser.add_argument(flag, **settings)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--parent", type=int, help="end with this process")
    parser.add_argument("arguments", nargs="+", help="CONFIG.toml and overrides, after --")
    return parser.parse_args(arguments)


def planned(options: argparse.Namespace) -> tuple[Launch, list[Host]]:
    """The launch that the options mean, and the hosts of its hostfile. Raises Refused."""
    hosts = read_hostfile(options.hostfile) if options.hostfile is not None else []
    nodes = len(hosts) or options.nodes
    if hosts and options.nodes not in (1, len(hosts)):
        what = f"{options.nodes}, but {options.hostfile} has {counted(len(hosts), 'host')}"
        raise refuse("--nodes", what, "leave --nodes out")
    if len({host.slots for host in hosts}) > 1 and options.launcher == "deepspeed":
        slots = ", ".join(f"{host.name} {host.slots}" for host in hosts)
        what = f"unequal slots ({slots}): DeepSpeed then numbers the ranks of a node wrongly"
        raise refuse(options.hostfile, what, "give every host the same, or use launch/torchrun.sh")
    master = parse_master(options.master) if options.master else None
    if hosts and master is None:
        master = Master(hosts[0].name, DEFAULT_PORT)
    if nodes > 1 and master is None:
        raise refuse("--master", f"{nodes} nodes need a place to meet", "give --master HOST:PORT of node 0")
    pdsh = options.launcher == "deepspeed" and bool(hosts) and not options.no_ssh
    node_rank = 0 if pdsh else _node_rank(options, hosts, nodes)
    ranks = hosts[node_rank].slots if hosts else options.ranks
    if options.launcher == "deepspeed":
        if nodes > 1 and not hosts:
            raise refuse("--hostfile", "the DeepSpeed launcher knows several nodes only by a hostfile", "write one")
        if master is None:
            master = Master("127.0.0.1", free_port())
    if pdsh and not options.dry_run and shutil.which("pdsh") is None:
        what = "there is no `pdsh` on this machine"
        raise refuse("--hostfile", what, "install it, or run this script on every node with --no_ssh --node-rank N")
    if pdsh:
        _refuse_folders_that_shells_read(os.getcwd(), sys.executable)
    hostfile = options.hostfile if options.launcher == "deepspeed" else None
    return (
        Launch(
            options.launcher, ranks, nodes, node_rank, master, hostfile, pdsh, options.arguments, is_known("localhost")
        ),
        hosts,
    )


def _refuse_folders_that_shells_read(*paths: str) -> None:
    """DeepSpeed writes them into the command of every host as they are."""
    for path in paths:
        if shlex.quote(path) != path or "%" in path:
            what = "every host's shell, or pdsh, would read characters of this path as its own"
            raise refuse(path, what, "use a path of letters, digits and _ - . / alone, such as a link")


def _node_rank(options: argparse.Namespace, hosts: Sequence[Host], nodes: int) -> int:
    """As given, else the line of the hostfile that is this machine."""
    rank: int | None = options.node_rank
    if rank is None:
        if not hosts:
            if nodes == 1:
                return 0
            raise refuse("--node-rank", f"which of the {nodes} nodes is this?", "give --node-rank, from 0")
        own = socket.gethostname()
        here = [rank for rank, host in enumerate(hosts) if host.name == own]
        # Only then by address: thousands of names take minutes to resolve.
        here = here or [rank for rank, host in enumerate(hosts) if _is_here(host.name)]
        if len(here) != 1:
            what = f"{len(here)} hosts of {options.hostfile} are this machine ({socket.gethostname()})"
            raise refuse("--node-rank", what, "give --node-rank, from 0 in the order of the file")
        return here[0]
    if not 0 <= rank < nodes:
        raise refuse("--node-rank", f"{rank}, of {counted(nodes, 'node')}", f"they count from 0 to {nodes - 1}")
    return rank


def _is_here(name: str) -> bool:
    try:
        return is_own(resolve(name))
    except Refused:
        return False
