"""Hosts for the ranks of a measurement: network namespaces behind a slow link each, or this machine's loopback.

    rank 0: eth0 --- port0 \\
    rank 1: eth0 --- port1  bridge       each rank and the bridge in a namespace of their own
    rank 2: eth0 --- port2 /

Both ends of a link pass a token bucket (`tc ... tbf`), so a rank sends and receives at the stated rate, both at
once. Frames are jumbo, to keep headers small beside the payload. Needs root; touches nothing outside its namespaces.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench.paired import KEEP_PAGES

MTU_BYTES = 9000
BURST = "64kb"
LATENCY = "100ms"
PORT = 29500
SUBNET = "10.77.0"


@dataclass(frozen=True)
class Host:
    """Where one rank runs. `counted`: its interface carries nothing but what this rank sends."""

    command: tuple[str, ...]
    interface: str
    counted: bool


@dataclass(frozen=True)
class Network:
    """Hosts in the order of their ranks, and where they meet."""

    hosts: tuple[Host, ...]
    rendezvous: str


def loopback(count: int) -> Network:
    """`count` ranks on this machine, which talk over `lo` beside everybody else."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return Network((Host((), "lo", counted=False),) * count, f"tcp://127.0.0.1:{port}")


@contextmanager
def shaped(count: int, rate: str) -> Iterator[Network]:
    """`count` ranks in a namespace each, their links at `rate` (as `tc` writes it: 100mbit, 1gbit)."""
    prefix = f"attnres_{os.getpid()}"
    hub, names = f"{prefix}_hub", [f"{prefix}_{rank}" for rank in range(count)]
    try:
        _run(f"ip netns add {hub}")
        _run(f"ip -n {hub} link add bridge type bridge")
        _run(f"ip -n {hub} link set bridge mtu {MTU_BYTES} up")
        for rank, name in enumerate(names):
            _connect(name, hub, rank, rate)
        hosts = tuple(Host(("ip", "netns", "exec", name), "eth0", counted=True) for name in names)
        yield Network(hosts, f"tcp://{SUBNET}.1:{PORT}")
    finally:
        for name in (*names, hub):
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)


def why_not_shaped() -> str | None:
    """Why this machine cannot make such namespaces; None where it can."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"there is no `{missing[0]}` (iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with shaped(1, "100mbit"):
            return None
    except subprocess.CalledProcessError as failure:
        return f"`{' '.join(failure.cmd)}` failed: {failure.stderr.strip()}"


def sent_bytes(interface: str) -> int:
    """What has left `interface` of the caller's namespace since it is up, headers included."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[8])
    raise LookupError(f"there is no interface {interface}")


def run_on(network: Network, module: str, arguments: Sequence[str]) -> str:
    """Run `python -m module arguments` on every host, told its rank; what rank 0 printed.

    Raises RuntimeError with the errors of the first rank that fails; the others are ended.
    """
    with TemporaryDirectory() as folder:
        files = [(Path(folder) / f"{rank}.out", Path(folder) / f"{rank}.err") for rank in range(len(network.hosts))]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank, host in enumerate(network.hosts):
                own = ["--rank", str(rank), "--rendezvous", network.rendezvous, "--interface", host.interface]
                command = [*host.command, sys.executable, "-W", "ignore", "-m", module, *arguments, *own]
                environment = os.environ | KEEP_PAGES | {"GLOO_SOCKET_IFNAME": host.interface}
                with files[rank][0].open("wb") as out, files[rank][1].open("wb") as err:
                    processes.append(subprocess.Popen(command, stdout=out, stderr=err, env=environment))
            failed = _first_failure(processes)
            if failed is not None:
                raise RuntimeError(f"rank {failed} failed:\n{files[failed][1].read_text()[-4000:]}")
            return files[0][0].read_text()
        finally:
            for process in processes:
                process.kill()
                process.wait()


def clean_up_on_signals() -> None:
    """Let SIGTERM, SIGHUP and SIGINT leave through every `finally`; a second one does not disturb it."""
    signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

    def leave(number: int, _frame: Any) -> None:
        for other in signals:
            signal.signal(other, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in signals:
        signal.signal(number, leave)


def _connect(name: str, hub: str, rank: int, rate: str) -> None:
    """Make the namespace of `rank` and its link to the bridge of `hub`."""
    port, bucket = f"port{rank}", f"tbf rate {rate} burst {BURST} latency {LATENCY}"
    _run(f"ip netns add {name}")
    _run(f"ip -n {name} link set lo up")
    _run(f"ip -n {name} link add eth0 mtu {MTU_BYTES} type veth peer name {port} mtu {MTU_BYTES} netns {hub}")
    _run(f"ip -n {hub} link set {port} master bridge up")
    _run(f"ip -n {name} address add {SUBNET}.{rank + 1}/24 dev eth0")
    _run(f"ip -n {name} link set eth0 up")
    _run(f"tc -n {name} qdisc add dev eth0 root {bucket}")
    _run(f"tc -n {hub} qdisc add dev {port} root {bucket}")


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)


def _first_failure(processes: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait until all are done (None) or one has failed."""
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code:
                return rank
        if all(code == 0 for code in codes):
            return None
        time.sleep(0.05)
