"""Nodes that meet: threads of this process stand for them."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from attnres_train.errors import Refused
from attnres_train.launch.commands import Launch
from attnres_train.launch.hostfile import Host
from attnres_train.launch.meeting import Node, meet
from attnres_train.launch.names import (
    Master,
    free_port,
    interface_towards,
    is_own,
    parse_master,
    resolve,
    resolve_all,
    who_listens,
)  # fmt: skip
from attnres_train.launch.process import alive, is_gone, parent_mark
from attnres_train.launch.twice import place, refuse_double_launch


def node(rank: int, nodes: int = 2, host: str | None = None, **facts: str) -> Node:
    return Node(rank, nodes, host or f"host-{rank}", 2 + rank, {"torch": "1", **facts})


def met(*nodes: Node, seconds: float = 30, names: tuple[str, ...] = ()) -> list[list[Node] | Refused]:
    """What each of `nodes` came to, all on one free port."""
    master = Master("127.0.0.1", free_port())

    def one(each: Node) -> list[Node] | Refused:
        try:
            return meet(each, master, seconds, names, lambda text: None)
        except Refused as refused:
            return refused

    with ThreadPoolExecutor(len(nodes)) as pool:
        futures: list[Future[list[Node] | Refused]] = []
        for each in nodes:
            futures.append(pool.submit(one, each))
            time.sleep(0.2)  # they come in this order
        return [future.result() for future in futures]


def test_every_node_learns_of_every_node_in_order() -> None:
    nodes = [node(rank, 3) for rank in range(3)]
    assert met(nodes[2], nodes[0], nodes[1]) == [nodes] * 3
    assert met(nodes[0], nodes[2], nodes[1]) == [nodes] * 3, "and not in that in which they came"


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ((node(0), node(0, host="other")), "two nodes claim rank 0: host-0 and other"),
        ((node(0, 3), node(1, 3), node(1, 3, host="other")), "two nodes claim rank 1: host-1 and other"),
        ((node(0), node(1, 3)), "node 1 (host-1) counts 3 nodes, node 0 (host-0) counts 2"),
        ((node(0), node(1, torch="2")), "torch is 1 on node 0 (host-0), 2 on node 1 (host-1)"),
    ],
    ids=["rank 0", "rank 1", "count", "versions"],
)
def test_nodes_that_do_not_fit_are_named_to_all(nodes: tuple[Node, ...], told: str) -> None:
    for outcome in met(*nodes):
        assert isinstance(outcome, Refused) and told in str(outcome)


def test_a_node_that_does_not_come_is_named_to_those_that_wait() -> None:
    for outcome in met(node(0, 3), node(1, 3), seconds=3, names=("a", "b", "c")):
        assert isinstance(outcome, Refused) and "node 2 (c) did not come" in str(outcome)
    (alone,) = met(node(1), seconds=0.3)
    assert isinstance(alone, Refused) and "nothing answers at 127.0.0.1" in str(alone)


def test_a_port_of_a_stranger_is_refused_by_name_and_a_stranger_is_sent_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        threading.Thread(target=lambda: stranger.accept()[0].close(), daemon=True).start()
        with pytest.raises(Refused, match=f"port {port} is taken by process {os.getpid()} "):
            meet(node(0), Master("127.0.0.1", port), 30, (), lambda text: None)
        assert str(os.getpid()) in who_listens(port)
    master = Master("127.0.0.1", free_port())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, node(0), master, 30, (), lambda text: None)
        for text in (b"GET / HTTP/1.1\r\n\r\n\n", b"[]\n", b'{"attnres_train": {"rank": 1}}\n'):
            _retry(lambda text=text: _say(master, text))  # type: ignore[misc]
        assert [each.rank for each in meet(node(1), master, 30, (), lambda text: None)] == [0, 1]
        assert len(waiting.result()) == 2


def _say(master: Master, text: bytes) -> None:
    with socket.create_connection(master) as line:
        line.sendall(text)
        line.recv(1)


def _retry(action: Callable[[], None]) -> None:
    for _ in range(600):
        try:
            return action()
        except ConnectionRefusedError:
            time.sleep(0.05)


def test_names_and_addresses() -> None:
    assert parse_master("a") == Master("a", 29500) and parse_master("a:1") == Master("a", 1)
    assert parse_master("[fe80::1]:7") == Master("fe80::1", 7) and str(parse_master("fe80::1")) == "[fe80::1]:29500"
    for wrong in ("", ":1", "a:", "a:b", "a:0", "a:65536"):
        with pytest.raises(Refused, match="--master"):
            parse_master(wrong)
    assert resolve("127.0.0.1") == "127.0.0.1" and is_own("127.0.0.1") and not is_own("192.0.2.1")
    assert interface_towards("127.0.0.1") == "lo"
    with pytest.raises(Refused) as refused:
        resolve_all([Host("127.0.0.1", 1), Host("no.such.host.invalid", 1), Host("localhost", 1)])
    told = str(refused.value)
    assert "'no.such.host.invalid' does not resolve" in told and "127.0.0.1 and localhost are one machine" in told


def test_double_launches_are_refused() -> None:
    launch = Launch("torchrun", 8, 2, 0, None, None, False, ["c.toml"])
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_NNODES": "2"}
    with pytest.raises(Refused, match="16 times on 2 nodes .* each would start 8 ranks"):
        refuse_double_launch(slurm, launch)
    one = slurm | {"SLURM_NNODES": "1"}
    with pytest.raises(Refused, match=r"16 times on 1 node \(SLURM_NTASKS\), and each would start 1 rank\n"):
        refuse_double_launch(one, Launch("torchrun", 1, 1, 0, None, None, False, ["c.toml"]))
    refuse_double_launch(slurm | {"SLURM_NTASKS": "2"}, launch)
    refuse_double_launch({"SLURM_NTASKS": "16"}, launch)  # an allocation, of which this is no task
    with pytest.raises(Refused, match="mpirun"):
        refuse_double_launch({"OMPI_COMM_WORLD_SIZE": "4"}, launch)
    with pytest.raises(Refused, match="rank 3 of another launcher"):
        refuse_double_launch({"RANK": "3", "LOCAL_RANK": "1"}, launch)


MEETING = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "7"}


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is '2', and no RANK says"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK is '1', and no RANK"),
        ({"LOCAL_WORLD_SIZE": "8"}, "no RANK"),
        ({"RANK": "0"}, "there is no WORLD_SIZE and no MASTER_ADDR and no MASTER_PORT"),
        (MEETING | {"MASTER_PORT": ""}, "no MASTER_PORT"),
        (MEETING | {"RANK": "one"}, "RANK is 'one', which is no number"),
        (MEETING | {"RANK": "2"}, "RANK is 2, of WORLD_SIZE 2"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, "srun starts 16 of these"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpirun starts 2 of these"),
        ({"PMI_SIZE": "2", "WORLD_SIZE": "1"}, "mpirun starts 2 of these"),
    ],
)
def test_ranks_that_are_told_by_halves_do_not_train_alone(environment: dict[str, str], told: str) -> None:
    with pytest.raises(Refused, match=told):
        place(environment, has_gpu=False)


def test_a_rank_is_what_its_launcher_says_and_alone_without_one() -> None:
    assert place(MEETING, has_gpu=False) == place(MEETING | {"LOCAL_RANK": "1"}, has_gpu=True) == (1, 2)
    assert place(MEETING | {"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, has_gpu=False) == (1, 2)
    assert place({}, has_gpu=True) == place({"WORLD_SIZE": "1", "LOCAL_RANK": "0"}, has_gpu=False) == (0, 1)
    with pytest.raises(Refused, match="no LOCAL_RANK"):
        place(MEETING, has_gpu=True)


def test_a_process_that_has_ended_is_gone_and_another_machine_s_is_not_known_to_be() -> None:
    mine = parent_mark(os.getpid())
    boot, process, began = mine.split()
    assert not is_gone(mine) and alive([os.getpid(), 2**30]) == {os.getpid()}
    assert is_gone(f"{boot} {process} {int(began) + 1}"), "another process with its number"
    assert is_gone(f"{boot} {2**30} 1") and not is_gone(f"elsewhere {2**30} 1")
