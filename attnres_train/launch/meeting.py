"""Nodes find each other before a rank starts: who is missing, who comes twice and who differs is known by name.

Node 0 listens where the ranks will meet later; the others say who they are and wait for its word. The protocol is
one line of JSON each way. Nothing of torch is needed, so that this takes a fraction of a second.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from attnres_train.errors import Problem, Refused, refuse
from attnres_train.launch.names import Master, family, is_own, resolve, who_listens
from attnres_train.words import counted

GREETING = "attnres_train"
_RETRY_SECONDS = 0.5
_LINE_SECONDS = 5.0
_WORD_EVERY_SECONDS = 10.0


@dataclass(frozen=True)
class Node:
    """What a node says of itself."""

    rank: int
    nodes: int
    host: str
    ranks: int
    facts: Mapping[str, str]
    """What must be the same on every node: versions."""

    def __str__(self) -> str:
        return f"node {self.rank} ({self.host})"


def meet(
    mine: Node, master: Master, limit_seconds: float, names: Sequence[str], say: Callable[[str], None]
) -> list[Node]:
    """All nodes in the order of their ranks, once every one is there. `names`: those of a hostfile, or none.

    Raises Refused on every node that is there, with the same reason.
    """
    address = resolve(master.host)
    deadline = time.monotonic() + limit_seconds
    if mine.rank == 0 and is_own(address):
        listener = _listen(address, master)
        if listener is not None:
            with listener:
                return _Host(mine, master, names, say).gather(listener, deadline, limit_seconds)
        deadline = time.monotonic() + _LINE_SECONDS  # somebody listens already: either another node 0, or a stranger
    elif mine.rank == 0:
        say(f"note: {master.host} ({address}) is not an address of this machine, though it is node 0")
    return _join(mine, master, address, deadline, limit_seconds)


def _listen(address: str, master: Master) -> socket.socket | None:
    """A socket that listens on the master's port; None if the port is taken."""
    listener = socket.socket(family(address), socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("", master.port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise refuse("--master", f"{master}: {error.strerror}", "choose another port") from error
    return listener


class _Host:
    """Node 0 while it waits for the others."""

    def __init__(self, mine: Node, master: Master, names: Sequence[str], say: Callable[[str], None]):
        self.mine, self.master, self.names, self.say = mine, master, names, say
        self.here: dict[int, Node] = {0: mine}
        self.lines: list[socket.socket] = []

    def gather(self, listener: socket.socket, deadline: float, limit_seconds: float) -> list[Node]:
        listener.settimeout(_RETRY_SECONDS)
        word_at = time.monotonic() + _WORD_EVERY_SECONDS
        try:
            while len(self.here) < self.mine.nodes:
                with contextlib.suppress(TimeoutError):
                    self._welcome(listener.accept()[0])
                if time.monotonic() > deadline:
                    what = f"{self._missing()} did not come to {self.master} within {limit_seconds:.0f} s"
                    raise refuse("nodes", what, "start it there, or look why it cannot reach this address and port")
                if time.monotonic() > word_at:
                    word_at += _WORD_EVERY_SECONDS
                    self.say(f"waiting at {self.master} for {self._missing()}")
            nodes = [self.here[rank] for rank in range(self.mine.nodes)]
            _refuse_differences(nodes)
        except Refused as refusal:
            self._tell({"refused": [asdict(problem) for problem in refusal.problems]})
            raise
        self._tell({"nodes": [asdict(node) for node in nodes]})
        return nodes

    def _welcome(self, line: socket.socket) -> None:
        """Hear one node out; strangers are sent away."""
        node = _read_node(line)
        if node is None:
            line.close()
            return
        self.lines.append(line)
        if node.nodes != self.mine.nodes or not 0 <= node.rank < node.nodes:
            what = f"{node} counts {counted(node.nodes, 'node')}, {self.mine} counts {self.mine.nodes}"
            raise refuse("--nodes", what, "give every node the same number, and ranks from 0")
        if node.rank in self.here:
            what = f"two nodes claim rank {node.rank}: {self.here[node.rank].host} and {node.host}"
            raise refuse("--node-rank", what, "give each node its own rank; 0 is the one at the --master address")
        self.here[node.rank] = node
        self.say(f"{node} is here")

    def _missing(self) -> str:
        ranks = [rank for rank in range(self.mine.nodes) if rank not in self.here]
        named = [f"node {rank}" + (f" ({self.names[rank]})" if rank < len(self.names) else "") for rank in ranks]
        return ", ".join(named[:16]) + (f" and {len(named) - 16} more" if len(named) > 16 else "")

    def _tell(self, word: dict[str, object]) -> None:
        for line in self.lines:
            with contextlib.suppress(OSError), line:
                line.sendall(json.dumps(word).encode() + b"\n")


def _join(mine: Node, master: Master, address: str, deadline: float, limit_seconds: float) -> list[Node]:
    """Say who this node is and wait for the word of node 0."""
    line = _connect(mine, master, address, deadline, limit_seconds)
    with line:
        try:
            line.sendall(json.dumps({GREETING: asdict(mine)}).encode() + b"\n")
            line.settimeout(max(deadline - time.monotonic(), 0) + limit_seconds + _LINE_SECONDS)
            word = json.loads(_read_line(line))
        except (OSError, ValueError) as error:
            if mine.rank == 0 and is_own(address):
                what = f"port {master.port} is taken by {who_listens(master.port)}"
                raise refuse(
                    "--master", what, f"end it, or choose another port: --master {master.host}:PORT"
                ) from error
            what = f"what listens at {master} is not node 0 of this launch, or it gave up"
            remedy = "see the last lines of node 0; is the address right?"
            if mine.rank == 0:
                remedy = "node 0 must run where that address is; correct --master or --node-rank"
            raise refuse("--master", what, remedy) from error
    if "refused" in word:
        raise Refused([Problem(**fields) for fields in word["refused"]])
    return [Node(**fields) for fields in word["nodes"]]


def _connect(mine: Node, master: Master, address: str, deadline: float, limit_seconds: float) -> socket.socket:
    while True:
        line = socket.socket(family(address), socket.SOCK_STREAM)
        line.settimeout(_LINE_SECONDS)
        try:
            line.connect((address, master.port))
            return line
        except OSError as error:
            line.close()
            if time.monotonic() > deadline:
                where = "" if address == master.host else f" ({address})"
                reason = error.strerror or str(error)
                what = f"nothing answers at {master}{where} within {limit_seconds:.0f} s: {reason}"
                remedy = "is node 0 started, and is this its address and port?"
                if mine.rank == 0:
                    remedy = "node 0 must run where that address is; correct --master or --node-rank"
                raise refuse("--master", what, remedy) from error
        time.sleep(_RETRY_SECONDS)


def _refuse_differences(nodes: Sequence[Node]) -> None:
    for node in nodes[1:]:
        for fact, value in nodes[0].facts.items():
            if node.facts.get(fact) != value:
                what = f"{fact} is {value} on {nodes[0]}, {node.facts.get(fact)} on {node}"
                raise refuse("nodes", what, "give every node the same code and libraries")


def _read_node(line: socket.socket) -> Node | None:
    """Who is at the other end; None for a stranger."""
    try:
        line.settimeout(_LINE_SECONDS)
        return Node(**json.loads(_read_line(line))[GREETING])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _read_line(line: socket.socket) -> bytes:
    text = b""
    while not text.endswith(b"\n"):
        piece = line.recv(65536)
        if not piece or len(text) > 1 << 24:
            raise ValueError("no line of text")
        text += piece
    return text
