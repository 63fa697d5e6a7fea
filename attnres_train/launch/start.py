"""What the launch scripts run: names, meeting of the nodes, launcher, watch, verdict.

python -m attnres_train.launch.start torchrun --ranks 8 [--nodes 2 --node-rank 0 --master HOST:PORT] -- CONFIG ...
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from attnres_train.console_encoding import print_every_character
from attnres_train.errors import ExitCode, Refused, refuse
from attnres_train.launch.commands import Launch, added_environment, command, forwarded
from attnres_train.launch.facts import has_gpu, version_facts
from attnres_train.launch.hostfile import Host, read_hostfile
from attnres_train.launch.interfaces import interfaces, is_loopback, refuse_wrong_interfaces
from attnres_train.launch.job_folder import job_folder
from attnres_train.launch.meeting import Node, meet
from attnres_train.launch.names import (
    DEFAULT_PORT,
    Master,
    free_port,
    interface_towards,
    is_known,
    is_own,
    parse_master,
    resolve,
    resolve_all,
    wait_for_name,
    who_listens,
)
from attnres_train.launch.process import PARENT, end_with_parent, parent_mark
from attnres_train.launch.record import JOB, OUTPUT
from attnres_train.launch.twice import refuse_double_launch
from attnres_train.launch.verdict import REFUSED
from attnres_train.launch.watch import Job
from attnres_train.words import counted

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Stopped(Exception):
    """A stop signal came before there was a launcher."""


class Checked(Exception):
    """The check of the configuration has said what is wrong; the argument is its exit code."""


class Stop:
    """Stop signals: an exception before the launcher is there, then a request to the job."""

    def __init__(self) -> None:
        self.job: Job | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._answer)

    def _answer(self, _number: int, _frame: FrameType | None) -> None:
        if self.job is None:
            raise Stopped
        self.job.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Launch what the command line says and return the exit code."""
    print_every_character()
    options = _options(sys.argv[1:] if arguments is None else arguments)
    if options.parent is not None:
        end_with_parent()
        if os.getppid() != options.parent:
            return 143
    stop = Stop()
    try:
        launch, hosts = _plan(options)
        if options.dry_run:
            print(_shown(launch))
            return ExitCode.DONE
        refuse_double_launch(os.environ, launch)
        refuse_wrong_interfaces(os.environ, interfaces())
        total = sum(host.slots for host in hosts) or launch.nodes * launch.ranks
        where = "this machine" if launch.nodes == 1 else f"{launch.nodes} nodes"
        _say(f"{launch.arguments[0]}, ranks on {where}: {total}; checking it, while {launch.launcher} loads")
        with job_folder() as folder, _check(launch, total) as check:
            return _launch(launch, hosts, options.join_seconds, folder, check, stop)
    except Checked as checked:
        code = int(checked.args[0])
        if code == ExitCode.REFUSED:
            print(REFUSED, file=sys.stderr)
        return code
    except Refused as refusal:
        print(f"refused:\n{refusal}\n{REFUSED}", file=sys.stderr)
        return ExitCode.REFUSED
    except Stopped:
        print("stopped on a signal before a rank began: nothing was trained (exit code 3)", file=sys.stderr)
        return ExitCode.STOPPED_ON_SIGNAL


@contextmanager
def _check(launch: Launch, world_size: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the configuration against every rule and sees that no run is in its folder; it says itself
    what is wrong."""
    config, *overrides = launch.arguments
    words = [sys.executable, "-m", "attnres_train.cli", "check", "--idle", "--world", str(world_size)]
    check = subprocess.Popen([*words, config, *overrides], stdout=subprocess.DEVNULL, preexec_fn=end_with_parent)
    try:
        yield check
    finally:
        check.kill()
        check.wait()


def _await(check: subprocess.Popen[bytes]) -> None:
    if (code := check.wait()) != 0:
        raise Checked(code)


def _launch(
    launch: Launch, hosts: Sequence[Host], join_seconds: float, folder: Path, check: subprocess.Popen[bytes], stop: Stop
) -> int:
    interface = interface_towards("127.0.0.1")
    first = sum(host.slots for host in hosts[: launch.node_rank])
    total = sum(host.slots for host in hosts) or launch.ranks
    if launch.nodes > 1:  # before a node waits for another
        _await(check)
    if launch.master is not None:
        if "KUBERNETES_SERVICE_HOST" in os.environ:  # the name of a pod is known a little after the pod
            wait_for_name(launch.master.host, join_seconds)
        address = resolve(launch.master.host)
        interface = interface_towards(address)
        refuse_wrong_interfaces(os.environ, interfaces(), launch.nodes > 1 and not is_loopback(address))
        resolve_all(hosts)
        if launch.pdsh:
            _refuse_taken_port(launch.master)
            first = 0
        else:
            nodes = _meet(launch, hosts, join_seconds)
            first, total = sum(node.ranks for node in nodes[: launch.node_rank]), sum(node.ranks for node in nodes)
    local = range(total) if launch.pdsh else range(first, first + launch.ranks)
    environment = _environment(launch, folder, interface)
    remote = None
    if launch.pdsh:
        _forward(environment, folder)
        remote = _run_folder(launch) / "ranks"
    direct = launch.launcher == "deepspeed" and not launch.pdsh
    alone = launch.nodes == 1
    with Job(command(launch), environment, folder, local, direct=direct, remote=remote, alone=alone) as job:
        _await(check)
        stop.job = job
        verdict = job.run()
    for line in verdict.lines:
        print(line, file=sys.stderr)
    return verdict.code


def _say(text: str) -> None:
    print(text, flush=True)


def _run_folder(launch: Launch) -> Path:
    """Where the ranks of other machines leave their records."""
    words = [sys.executable, "-m", "attnres_train.supervise", "--where", "--", *launch.arguments]
    return Path(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


def _meet(launch: Launch, hosts: Sequence[Host], join_seconds: float) -> list[Node]:
    assert launch.master is not None
    mine = Node(launch.node_rank, launch.nodes, socket.gethostname(), launch.ranks, version_facts())
    names = [host.name for host in hosts]
    began = time.monotonic()
    nodes = meet(mine, launch.master, join_seconds, names, lambda text: print(text, file=sys.stderr, flush=True))
    if launch.node_rank == 0 and launch.nodes > 1:
        print(f"{launch.nodes} nodes at {launch.master} after {time.monotonic() - began:.1f} s", flush=True)
    return nodes


def _refuse_taken_port(master: Master) -> None:
    """Before pdsh starts anything: the ranks will listen there, if it is this machine."""
    address = resolve(master.host)
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_own(address):
            try:
                probe.bind(("", master.port))
            except OSError as error:
                what = f"port {master.port} is taken by {who_listens(master.port)}"
                raise refuse("--master", what, "choose another port") from error


def _environment(launch: Launch, folder: Path, interface: str | None) -> dict[str, str]:
    added = added_environment(launch, os.environ, has_gpu(), interface)
    # PET_NNODES and the like are torchrun's options as platforms set them; here the script's options say it.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    return {**kept, **added, JOB: str(folder), PARENT: parent_mark(os.getpid())}


def _forward(environment: dict[str, str], folder: Path) -> None:
    """Write the file by which DeepSpeed gives variables to the ranks of other nodes, with the user's own lines last."""
    lines = [*forwarded(environment), f"{OUTPUT}=1"]
    for own in (Path.home() / ".deepspeed_env", Path(".deepspeed_env")):
        if own.is_file():
            lines += [line for line in own.read_text(encoding="utf-8").splitlines() if "=" in line]
    path = folder / "deepspeed_env"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    environment["DS_ENV_FILE"] = str(path)


def _plan(options: argparse.Namespace) -> tuple[Launch, list[Host]]:
    """The launch that the options mean."""
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


def _shown(launch: Launch) -> str:
    """The command as a shell takes it, with the environment that is added."""
    added = added_environment(launch, os.environ, has_gpu(), None)
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in added.items()), shlex.join(command(launch))])


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("launcher", choices=("torchrun", "deepspeed"))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int)
    parser.add_argument("--master")
    parser.add_argument("--hostfile")
    parser.add_argument("--no_ssh", action="store_true")
    parser.add_argument("--join-seconds", type=float, default=300)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--parent", type=int, help="end with this process")
    parser.add_argument("arguments", nargs="+", help="CONFIG.toml and overrides, after --")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
