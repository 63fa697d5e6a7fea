"""What goes wrong between two nodes: each ends in time, with the true cause in words, and nothing is left.

The nodes are network namespaces with two ranks each (`launch/rehearse.sh` is the same by hand).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.end_to_end.conftest import ROOT
from tests.end_to_end.nodes import Script, ip, two_nodes, why_no_nodes

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or "")]
TIMEOUT_SECONDS = 20
SECONDS = 30.0
"""From a failure to the end of everything."""
both_launchers = pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])


class Nodes(NamedTuple):
    spaces: tuple[str, str]
    config: Path
    hostfile: Path

    def start(self, launcher: str, node: int, *options: str) -> Script:
        """The script of `launcher` on `node`; a master among the options stands for the hostfile."""
        command: list[str | Path] = [ROOT / f"launch/{launcher}.sh", self.config, "--training.steps", "5000"]
        command += ["--parallel.pipeline", "2", "--parallel.timeout_seconds", str(TIMEOUT_SECONDS)]
        command += [] if "--master" in options and launcher == "torchrun" else ["--hostfile", self.hostfile]
        command += ["--no_ssh"] if launcher == "deepspeed" else []
        return Script([*command, *options], self.spaces[node])

    def train(self, launcher: str) -> tuple[Script, Script]:
        """Both nodes, training."""
        scripts = self.start(launcher, 0), self.start(launcher, 1)
        scripts[0].wait_for(r"step +3/5000 ")
        for script in scripts:
            script.below()
        return scripts


@pytest.fixture
def nodes(write_config: Callable[..., Path], tmp_path: Path) -> Iterator[Nodes]:
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("node-0 slots=2\nnode-1 slots=2\n")
    with two_nodes() as spaces:
        yield Nodes(spaces, write_config(), hostfile)
        for space in spaces:
            left = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout.split()
            for process in left:
                os.kill(int(process), signal.SIGKILL)
            assert not left, f"processes left on {space}"


@both_launchers
def test_a_killed_worker(launcher: str, nodes: Nodes) -> None:
    """Both nodes name it, though the first only sees connections break."""
    first, second = nodes.train(launcher)
    os.kill(second.rank(3), signal.SIGKILL)
    for script in (first, second):
        assert script.wait(SECONDS) == 1, script.text
        assert "cause: rank 3 on node-1, at step" in script.end(), script.text
        assert "signal 9 (SIGKILL): most often memory" in script.end() and "rank-0003.log" in script.end()
        assert "Connection" not in script.end()


@both_launchers
def test_a_killed_node(launcher: str, nodes: Nodes) -> None:
    first, second = nodes.train(launcher)
    second.kill()
    assert first.wait(SECONDS) == 1, first.text
    assert "another node (node-1) ended without a word; last seen: rank 2 on node-1" in first.end(), first.text
    assert "Connection" not in first.end()


@both_launchers
def test_a_killed_launcher(launcher: str, nodes: Nodes) -> None:
    """Its ranks are told by the kernel; all ranks save, and both scripts end."""
    first, second = nodes.train(launcher)
    os.kill(second.launcher(), signal.SIGKILL)
    codes = [script.wait(SECONDS) for script in (first, second)]
    assert codes[0] in (1, 3) and codes[1] in (1, 3), (first.text, second.text)


@both_launchers
def test_a_killed_script(launcher: str, nodes: Nodes) -> None:
    """SIGKILL of a launch script is a stop: the ranks save and end, on both nodes."""
    first, second = nodes.train(launcher)
    os.kill(second.process.pid, signal.SIGKILL)
    assert first.wait(SECONDS) == 3, first.text
    assert second.wait(SECONDS) == -signal.SIGKILL
    assert "stopped on a signal after step" in first.text


@both_launchers
def test_a_stopped_rank(launcher: str, nodes: Nodes) -> None:
    """SIGSTOP: nothing breaks, so it ends by the limit of the wait, and the one that does not answer is named."""
    first, second = nodes.train(launcher)
    os.kill(second.rank(2), signal.SIGSTOP)
    for script in (first, second):
        assert script.wait(TIMEOUT_SECONDS + SECONDS) == 1, script.text
        assert "rank 2 on node-1" in script.end() and "SIGSTOP" in script.end(), script.text


@both_launchers
def test_a_node_whose_ranks_all_stand_still(launcher: str, nodes: Nodes) -> None:
    """Nobody there waits in vain, and its launcher sees nothing: it ends because the other node has failed."""
    first, second = nodes.train(launcher)
    for rank in (2, 3):
        os.kill(second.rank(rank), signal.SIGSTOP)
    for script in (first, second):
        assert script.wait(TIMEOUT_SECONDS + SECONDS) == 1, script.text
        assert "on node-1" in script.end() and "SIGSTOP" in script.end(), script.text


def test_a_rank_that_stands_still_goes_on_to_save_when_all_are_to_stop(nodes: Nodes) -> None:
    first, second = nodes.train("torchrun")
    os.kill(second.rank(2), signal.SIGSTOP)
    for script in (first, second):
        script.process.send_signal(signal.SIGTERM)
    for script in (first, second):
        assert script.wait(SECONDS) == 3, script.text


@both_launchers
def test_the_link_goes_down(launcher: str, nodes: Nodes) -> None:
    first, second = nodes.train(launcher)
    ip(f"-n {nodes.spaces[1]} link set eth0 down")
    assert first.wait(TIMEOUT_SECONDS + SECONDS) == 1, first.text
    assert second.wait(TIMEOUT_SECONDS + SECONDS) == 1, second.text
    assert "on node-1" in first.end() and "does not answer" in first.end(), first.text
    assert "does not answer" in second.end(), second.text


@both_launchers
def test_a_stop_signal_on_one_node_saves_on_both(launcher: str, nodes: Nodes) -> None:
    first, second = nodes.train(launcher)
    second.process.send_signal(signal.SIGTERM)
    assert [first.wait(SECONDS), second.wait(SECONDS)] == [3, 3], first.text + second.text


@both_launchers
def test_a_node_that_never_comes_is_named(launcher: str, nodes: Nodes) -> None:
    started = time.monotonic()
    first = nodes.start(launcher, 0, "--join-seconds", "5")
    assert first.wait(SECONDS) == 2 and time.monotonic() - started < 20
    assert "node 1 (node-1) did not come to node-0:29500 within 5 s" in first.text


@both_launchers
def test_two_nodes_that_claim_rank_0_are_named(launcher: str, nodes: Nodes) -> None:
    first = nodes.start(launcher, 0, "--node-rank", "0")
    time.sleep(2)
    second = nodes.start(launcher, 1, "--node-rank", "0")
    for script in (first, second):
        assert script.wait(SECONDS) == 2, script.text
        assert "two nodes claim rank 0: node-0 and node-1" in script.text


@both_launchers
def test_a_port_that_is_taken(launcher: str, nodes: Nodes) -> None:
    listener = Script(["python3", "-m", "http.server", "29500"], nodes.spaces[0])
    time.sleep(1)
    first = nodes.start(launcher, 0)
    try:
        assert first.wait(SECONDS) == 2, first.text
        assert "port 29500 is taken by process" in first.text and "http.server" in first.text
    finally:
        listener.kill()


@both_launchers
@pytest.mark.parametrize(
    ("master", "told"),
    [
        ("nowhere:29500", "the name 'nowhere' does not resolve on node-1"),
        ("ghost:29500", "nothing answers at ghost:29500 (10.79.0.9) within 3 s"),
    ],
)
def test_a_wrong_address(launcher: str, master: str, told: str, nodes: Nodes) -> None:
    options = ["--nodes", "2", "--node-rank", "1", "--master", master, "--join-seconds", "3"]
    second = nodes.start(launcher, 1, *options)
    assert second.wait(SECONDS) == 2 and told in second.text, second.text
