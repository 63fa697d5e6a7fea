"""A tiny grid with real launches: killed in the middle it goes on, and what is done is skipped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.conftest import ROOT, by_step

GRID = """
base = "{base}"
folder = "{folder}"
reference = "standard"
seeds = [1, 2]

[override]
training.steps = 60
training.eval_interval_steps = 10
observe.depth_interval = 30
checkpoint.interval_steps = 5

[[case]]
name = "standard"
residual.mode = "standard"
residual.block_size = "none"

[[case]]
name = "block"
residual.block_size = 2
"""


@pytest.fixture
def grid(write_config: Callable[..., Path], tmp_path: Path) -> Path:
    base = write_config()
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format(base=base, folder=tmp_path / "grid"), encoding="utf-8")
    return path


def ablate(grid: Path, *flags: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "attnres_train.cli", "ablate", str(grid), *flags]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_a_checkpoint(folder: Path) -> None:
    deadline = time.monotonic() + 120
    while not list(folder.glob("checkpoints/step-*/manifest.json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_grid_that_is_stopped_and_killed_goes_on(grid: Path, tmp_path: Path) -> None:
    runs = tmp_path / "grid"
    first = ablate(grid)
    wait_for_a_checkpoint(runs / "standard_seed-1")
    second = ablate(grid)
    assert "another ablate runs in" in second.communicate()[1] and second.returncode == 2
    first.send_signal(signal.SIGTERM)
    said = first.communicate(timeout=60)[1]
    assert first.returncode == 3, said
    assert "standard_seed-1: stopped and saved" in said and "block_seed-1: begins" not in said

    killed = ablate(grid)
    wait_for_a_checkpoint(runs / "block_seed-1")
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    deadline = time.monotonic() + 60  # its run saves and ends by itself
    while '"end": null' in (runs / "block_seed-1/ranks/rank-0000.json").read_text(encoding="utf-8"):
        assert time.monotonic() < deadline
        time.sleep(0.1)

    last = ablate(grid, "--json")
    out, said = last.communicate(timeout=240)
    assert last.returncode == 0, said
    assert "4 runs: 1 done, 1 begun, 2 to begin" in said and "standard_seed-1: begins" not in said
    found = json.loads(out)
    assert found["unfinished"] == [] and [cell["loss"]["n"] for cell in found["cells"]] == [2, 2]
    for case in ("standard", "block"):
        losses = [by_step(runs / f"{case}_seed-{seed}", "loss/valid")[60] for seed in (1, 2)]
        (cell,) = [cell for cell in found["cells"] if cell["case"] == case]
        assert cell["loss"]["mean"] == pytest.approx(sum(losses) / 2)
        assert set(by_step(runs / f"{case}_seed-1", "loss/train")) == set(range(1, 61))

    again = ablate(grid)
    said = again.communicate(timeout=60)[1]
    assert again.returncode == 0 and "4 runs: 4 done" in said and "begins" not in said
