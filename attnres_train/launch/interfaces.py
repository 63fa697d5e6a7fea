"""The variables that name network interfaces, against those that there are: before gloo or NCCL fails on them.

gloo's and TensorPipe's variables hold exact names. NCCL's holds beginnings of names, `=` before them for exact names,
`^` for all others: `eth,ib`, `=eth0`, `^lo,docker`, `^=lo`; a name may be followed by `:port`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attnres_train.errors import Problem, Refused
from attnres_train.launch.names import address_of

GLOO = "GLOO_SOCKET_IFNAME"
NCCL = "NCCL_SOCKET_IFNAME"
TENSORPIPE = "TP_SOCKET_IFNAME"


def interfaces() -> dict[str, str | None]:
    """The network interfaces of this machine with one address of each; None for those without any."""
    try:
        lines = Path("/proc/net/if_inet6").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    sixes = {line.split()[5]: str(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line[:32]))) for line in lines}
    return {name: address_of(name) or sixes.get(name) for _, name in socket.if_nameindex()}


def refuse_wrong_interfaces(
    environment: Mapping[str, str], here: Mapping[str, str | None], several_nodes: bool = False
) -> None:
    """Refuse variables by which no connection can come about. `here`: what `interfaces` found.

    `several_nodes`: ranks are also on machines that the loopback does not lead to.
    """
    readers: dict[str, Callable[[str, Sequence[str]], tuple[list[str], str]]]
    readers = {GLOO: _exact, TENSORPIPE: _exact, NCCL: _nccl}
    problems = []
    for name, read in readers.items():
        if value := environment.get(name, ""):
            meant, why = read(value, list(here))
            why = why or _why_useless(meant, here, several_nodes)
            if why:
                problems.append(Problem(name, f"{value!r}: {why}; here are {_listed(here)}", _remedy(name, here)))
    if problems:
        raise Refused(problems)


def _exact(value: str, there: Sequence[str]) -> tuple[list[str], str]:
    """The interfaces that are meant, and what is wrong."""
    names = value.split(",")
    missing = [name for name in names if name not in there]
    if missing and missing[0][:1] in ("^", "="):
        return [], "`^` and `=` are NCCL's; here stand exact names, separated by commas"
    return names, f"there is no interface {missing[0]!r}" if missing else ""


def _nccl(value: str, there: Sequence[str]) -> tuple[list[str], str]:
    others, rest = value.startswith("^"), value.removeprefix("^")
    exact, rest = rest.startswith("="), rest.removeprefix("=")
    names = [name.partition(":")[0] for name in rest.split(",") if name]
    named = [one for one in there if any(one == name if exact else one.startswith(name) for name in names)]
    if others:
        return [one for one in there if one not in named], ""
    what = "is called" if exact else "begins with"
    return named, "" if named else f"no interface {what} {' or '.join(map(repr, names)) or 'that'}"


def _why_useless(meant: Sequence[str], here: Mapping[str, str | None], several_nodes: bool) -> str:
    if not meant:
        return "leaves no interface"
    usable = [name for name in meant if here[name] is not None]
    if not usable:
        return f"{meant[0]} has no address"
    if several_nodes and all(is_loopback(here[name] or "") for name in usable):
        return f"{usable[0]} leads to this machine alone, and ranks are on others"
    return ""


def nccl_settings(environment: Mapping[str, str], root: Path = Path("/")) -> dict[str, str]:
    """Variables of NCCL in the files that it reads itself, which give way to the environment: the user's, then the
    machine's."""
    home = environment.get("HOME", "").lstrip("/")
    own = environment.get("NCCL_CONF_FILE") or str(root / home / ".nccl.conf")
    found: dict[str, str] = {}
    for path in (root / "etc/nccl.conf", Path(own)):
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        found |= dict(line.partition("=")[::2] for line in lines if line.startswith("NCCL_") and "=" in line)
    return found


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _listed(here: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} ({address or 'no address'})" for name, address in here.items())


def _remedy(name: str, here: Mapping[str, str | None]) -> str:
    usable = [one for one, address in here.items() if address and not is_loopback(address)]
    example = f"export {name}={usable[0]}, or " if usable else ""
    return f"{example}unset {name}: the launch scripts find the interface that leads to the other nodes"
