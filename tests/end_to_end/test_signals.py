"""Signals that come before there is anything to save, and ranks that die before the first step."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.conftest import ROOT
from tests.end_to_end.nodes import why_no_nodes
from tests.end_to_end.processes import wait_for_rank, wait_until_caught


def start(config: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [ROOT / "launch/torchrun.sh", config, "--ranks", "2", "--training.steps", "5000"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def ended(started: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and all that was said."""
    told, _ = started.communicate(timeout=120)
    assert "Traceback" not in told and "torch/distributed" not in told, told
    return started.returncode, told


@pytest.mark.parametrize("seconds", [0, 1.4])
def test_a_stop_of_the_launcher_before_ranks_listen_ends_with_code_3(
    seconds: float, write_config: Callable[..., Path], tmp_path: Path
) -> None:
    """While the configuration is checked, and while torchrun itself is starting."""
    started = start(write_config())
    assert started.stdout is not None and any("checking it" in line for line in started.stdout)
    time.sleep(seconds)
    started.send_signal(signal.SIGTERM)
    code, told = ended(started)
    assert code == 3 and re.search(r"stopped on a signal.* \(exit code 3\)$", told.rstrip()), told
    assert not (tmp_path / "run/checkpoints").exists()


def test_a_stop_of_one_rank_before_the_first_step_ends_all_with_code_3(write_config: Callable[..., Path]) -> None:
    started = start(write_config())
    rank = wait_for_rank(started.pid)
    wait_until_caught(rank, signal.SIGUSR1)  # it is importing torch, or waiting for the other rank
    os.kill(rank, signal.SIGUSR1)
    code, told = ended(started)
    assert code == 3 and "before the first step: nothing was trained" in told, told


def test_a_rank_that_is_killed_before_the_first_step_is_a_failure(write_config: Callable[..., Path]) -> None:
    """The other one waits for it inside of torch, where Python answers no signal."""
    started = start(write_config())
    os.kill(wait_for_rank(started.pid), signal.SIGKILL)
    code, told = ended(started)
    assert code == 1 and "SIGKILL" in told, told


@pytest.mark.slow
def test_a_stop_behind_the_last_checkpoint_is_a_run_that_is_done(write_config: Callable[..., Path]) -> None:
    """The launcher takes it for its own end and fails; all that was wanted is saved."""
    started = subprocess.Popen(
        [ROOT / "launch/torchrun.sh", write_config(), "--ranks", "2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    assert started.stdout is not None
    for line in started.stdout:
        if line.startswith("step 12  checkpoint durable"):
            started.send_signal(signal.SIGTERM)
            break
    code, told = ended(started)
    assert code == 0 and "done: 12 of 12 steps" in told and "failed" not in told, told


@pytest.mark.slow
@pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or "")
@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_machine_whose_own_name_does_not_resolve_trains(launcher: str, write_config: Callable[..., Path]) -> None:
    """pytorch/pytorch#150532: torchrun told the ranks that name and waited for minutes."""
    command = [ROOT / f"launch/{launcher}.sh", write_config(), "--ranks", "2"]
    named = ["unshare", "--uts", "bash", "-c", 'hostname no.such.host.invalid && exec "$@"', "_"]
    done = subprocess.run([*named, *command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "done: 12 of 12 steps" in done.stdout, done.stdout + done.stderr
    assert "resolve" not in done.stderr, "nor does gloo miss it"
