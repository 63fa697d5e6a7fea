"""What the launch scripts run: names, meeting of the nodes, launcher, watch, verdict.

python -m attnres_train.launch.start torchrun --ranks 8 [--nodes 2 --node-rank 0 --master HOST:PORT] -- CONFIG ...
"""

from __future__ import annotations

import os
import shlex
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
from attnres_train.launch.cores import usable_cores
from attnres_train.launch.facts import has_gpu, version_facts
from attnres_train.launch.hostfile import Host
from attnres_train.launch.interfaces import interfaces, is_loopback, nccl_settings, refuse_wrong_interfaces
from attnres_train.launch.job_folder import job_folder
from attnres_train.launch.meeting import Node, meet
from attnres_train.launch.names import (
    Master,
    interface_towards,
    is_own,
    resolve,
    resolve_all,
    wait_for_name,
    who_listens,
)
from attnres_train.launch.options import planned, read_options
from attnres_train.launch.process import PARENT, STOP_SIGNALS, end_with_parent, parent_mark
from attnres_train.launch.record import JOB, OUTPUT
from attnres_train.launch.twice import refuse_double_launch
from attnres_train.launch.verdict import REFUSED
from attnres_train.launch.watch import Job


class Stopped(Exception):
    """A stop signal came before there was a launcher."""


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
    options = read_options(sys.argv[1:] if arguments is None else arguments, __doc__)
    if options.parent is not None:
        end_with_parent()
        if os.getppid() != options.parent:
            return 143
    stop = Stop()
    try:
        launch, hosts = planned(options)
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


def _refused(check: subprocess.Popen[bytes]) -> int:
    """The exit code of the check, once it has said what is wrong; 0 where nothing is."""
    if (code := check.wait()) == ExitCode.REFUSED:
        print(REFUSED, file=sys.stderr)
    return code


def _launch(
    launch: Launch, hosts: Sequence[Host], join_seconds: float, folder: Path, check: subprocess.Popen[bytes], stop: Stop
) -> int:
    interface = interface_towards("127.0.0.1")
    first = sum(host.slots for host in hosts[: launch.node_rank])
    total = sum(host.slots for host in hosts) or launch.ranks
    if launch.nodes > 1 and (code := _refused(check)):  # before a node waits for another
        return code
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
        if code := _refused(check):
            return code
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
    said = {**nccl_settings(os.environ), **os.environ}  # what NCCL reads in files gives way to the environment
    added = added_environment(launch, said, has_gpu(), interface, usable_cores())
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


def _shown(launch: Launch) -> str:
    """The command as a shell takes it, with the environment that is added."""
    added = added_environment(launch, os.environ, has_gpu(), None, usable_cores())
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in added.items()), shlex.join(command(launch))])


if __name__ == "__main__":
    sys.exit(main())
