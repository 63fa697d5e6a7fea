"""The launch that options, a hostfile and the environment mean on this node, or why it is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnres_train.errors import Refused
from attnres_train.launch.commands import Launch, added_environment
from attnres_train.launch.names import Master
from attnres_train.launch.options import planned, read_options
from attnres_train.launch.process import alive, is_gone, parent_mark
from attnres_train.launch.twice import place, refuse_double_launch


def launch(launcher: str, *options: object) -> Launch:
    return planned(read_options([launcher, *map(str, options), "--", "my.toml", "--training.steps=3"], None))[0]


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    path = tmp_path / "hosts"
    path.write_text("node-a slots=4\nnode-b slots=2\nnode-c slots=3\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("rank", "slots"), [(0, 4), (1, 2), (2, 3)])
def test_every_node_starts_its_own_slots_and_meets_at_the_first_host(rank: int, slots: int, hosts: Path) -> None:
    found = launch("torchrun", "--hostfile", hosts, "--node-rank", rank)
    assert (found.ranks, found.nodes, found.node_rank) == (slots, 3, rank)
    assert found.master == Master("node-a", 29500)
    assert found.arguments == ["my.toml", "--training.steps=3"]


@pytest.mark.parametrize("rank", [-1, 3])
def test_nodes_count_from_0(rank: int, hosts: Path) -> None:
    with pytest.raises(Refused, match=f"{rank}, of 3 nodes"):
        launch("torchrun", "--hostfile", hosts, f"--node-rank={rank}")


def test_the_master_that_is_named_is_the_one(hosts: Path) -> None:
    found = launch("torchrun", "--hostfile", hosts, "--node-rank", 1, "--master", "node-c:7")
    assert found.master == Master("node-c", 7)
    assert launch("torchrun", "--ranks", 2).master is None


def test_an_interface_is_this_node_s_and_what_is_set_stays() -> None:
    one = Launch("deepspeed", 2, 1, 0, Master("a", 1), "hosts", False, ["c.toml"])
    wanted = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "DS_ACCELERATOR": "cpu"}
    assert added_environment(one, {}, has_gpu=False, interface="eth0", cores=8) == wanted
    interfaces = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"}
    assert added_environment(one, {"OMP_NUM_THREADS": "4"}, has_gpu=True, interface="eth0") == interfaces
    own = {"NCCL_SOCKET_IFNAME": "ib", "GLOO_SOCKET_IFNAME": "lo"}
    assert added_environment(one, own, has_gpu=True, interface="eth0", cores=9) == {"OMP_NUM_THREADS": "4"}
    assert added_environment(one, own, has_gpu=True, interface=None, cores=1) == {"OMP_NUM_THREADS": "1"}
    pdsh = Launch("deepspeed", 2, 2, 0, Master("a", 1), "hosts", True, ["c.toml"])
    assert added_environment(pdsh, {}, has_gpu=True, interface="eth0", cores=8) == {}


def step(tasks: int, nodes: int) -> dict[str, str]:
    return {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_STEP_NUM_NODES": str(nodes)}


def test_a_script_runs_once_a_node() -> None:
    one, two = Launch("torchrun", 2, 1, 0, None, None, False, []), Launch("torchrun", 2, 2, 0, None, None, False, [])
    for sound in ({}, step(2, 2), {"OMPI_COMM_WORLD_SIZE": "2"}):
        refuse_double_launch(sound, two)
    for doubled, of in ((step(2, 1), one), (step(3, 2), two), ({"PMI_SIZE": "2"}, one), ({"PMI_SIZE": "3"}, two)):
        with pytest.raises(Refused, match="double launch"):
            refuse_double_launch(doubled, of)
    with pytest.raises(Refused, match="runs as rank 0 of another launcher"):
        refuse_double_launch({"RANK": "0", "LOCAL_RANK": "0"}, one)


def test_a_rank_is_one_of_the_world() -> None:
    met = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "2"}
    assert place({}, has_gpu=False) == (0, 1)
    assert place({**met, "RANK": "1"}, has_gpu=False) == (1, 2)
    for wrong in ({**met, "RANK": "2"}, {"RANK": "0", "WORLD_SIZE": "1"}, {"WORLD_SIZE": "2"}, step(2, 1)):
        with pytest.raises(Refused):
            place(wrong, has_gpu=False)
    with pytest.raises(Refused, match="LOCAL_RANK"):
        place({**met, "RANK": "0"}, has_gpu=True)


def test_what_has_ended_is_not_alive_though_nobody_asked_for_its_code() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE)
    mark = parent_mark(process.pid)
    assert process.stdout is not None and process.stdout.read() == b""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    try:
        assert alive([process.pid, os.getpid()]) == {os.getpid()}
        assert is_gone(mark)
    finally:
        process.wait()
    _, number, began = parent_mark(os.getpid()).split()
    assert not is_gone(f"another-boot {number} {int(began) + 1}"), "of another machine nobody here knows"
    assert is_gone(f"{mark.split()[0]} {number} {int(began) + 1}")
