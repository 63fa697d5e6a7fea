"""Host names, addresses and ports, as this machine sees them."""

from __future__ import annotations

import fcntl
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attnres_train.errors import Problem, Refused, refuse
from attnres_train.launch.hostfile import Host

DEFAULT_PORT = 29500
_SIOCGIFADDR = 0x8915
"""ioctl: the IPv4 address of a network interface (linux/sockios.h)."""


class Master(NamedTuple):
    """Where the nodes and then the ranks meet: an address of node 0."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_master(text: str) -> Master:
    """`host`, `host:port` or `[ipv6]:port`."""
    host, colon, port = text.rpartition(":") if "]:" in text or text.count(":") == 1 else (text, "", "")
    if not host.strip("[]") or (colon and not (port.isdecimal() and 0 < int(port) < 65536)):
        raise refuse("--master", f"{text!r} is not HOST:PORT", "write the address of node 0, such as node-a:29500")
    return Master(host.strip("[]"), int(port) if colon else DEFAULT_PORT)


def resolve(host: str) -> str:
    """The first address of `host`.

    Raises Refused where the name is not known here.
    """
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except socket.gaierror as error:
        what = f"the name {host!r} does not resolve on {socket.gethostname()}: {error.strerror}"
        raise refuse(
            "host name", what, "correct it, or use an address, or add it to /etc/hosts of every node"
        ) from error


def is_known(host: str) -> bool:
    """Whether the name resolves here."""
    try:
        resolve(host)
    except Refused:
        return False
    return True


def refuse_unknown_master(environment: Mapping[str, str]) -> None:
    """Refuse to wait for a rank 0 whose name, as the launcher told it, is not known here."""
    if (host := environment.get("MASTER_ADDR")) and "RANK" in environment:
        try:
            resolve(host)
        except Refused as refusal:
            what = f"{host!r}: {refusal.problems[0].message}"
            remedy = "add it to /etc/hosts; on one machine: launch/torchrun.sh, or torchrun --local-addr 127.0.0.1"
            raise refuse("MASTER_ADDR", what, remedy) from refusal


def wait_for_name(host: str, limit_seconds: float) -> None:
    """Wait until `host` resolves.

    Raises Refused after the limit.
    """
    deadline = time.monotonic() + limit_seconds
    while True:
        try:
            resolve(host)
            return
        except Refused:
            if time.monotonic() > deadline:
                raise
        time.sleep(1)


def resolve_all(hosts: Sequence[Host]) -> None:
    """Refuse, all at once, names that are not known here and two names for one machine."""
    problems: list[Problem] = []
    names: dict[str, str] = {}
    for host in hosts:
        try:
            other = names.setdefault(resolve(host.name), host.name)
        except Refused as refusal:
            problems += refusal.problems
        else:
            if other != host.name:
                what = f"{other} and {host.name} are one machine ({resolve(host.name)})"
                problems.append(Problem("hostfile", what, "give it one line, with all of its slots"))
    if problems:
        raise Refused(problems)


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def is_own(address: str) -> bool:
    """Whether `address` is one of this machine's."""
    with socket.socket(family(address), socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def interface_towards(address: str) -> str | None:
    """The network interface of this machine that packets to `address` leave by; None if that cannot be told."""
    try:
        with socket.socket(family(address), socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing: only the route is looked up
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                if address_of(name) == own:
                    return name
    except OSError:
        pass
    return None


def who_listens(port: int) -> str:
    """The process that listens on `port`, in words, as far as /proc tells."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        fields = [line.split() for line in lines]
        sockets |= {f"socket:[{f[9]}]" for f in fields if f[3] == "0A" and int(f[1].rpartition(":")[2], 16) == port}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(link.readlink()) in sockets for link in (process / "fd").iterdir()):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                return f"process {process.name} ({command[:80]})"
        except OSError:
            continue
    return "another process"


def address_of(interface: str) -> str | None:
    """The IPv4 address of a network interface of this machine; None where it has none."""
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
        except OSError:
            return None
