"""A rank that fails at step 3, under either launcher: everything ends within 30 seconds, and the last lines say why."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.conftest import ROOT, by_step
from tests.end_to_end.nodes import Script
from tests.end_to_end.processes import read

SECONDS = 30.0
STEP = 3
LAUNCHERS = ("torchrun", "deepspeed")
ENDS = {
    "raises": ("raise ValueError('no more data')", "ValueError: no more data"),
    "killed": ("os.kill(os.getpid(), 9)", "killed by signal 9 (SIGKILL): most often memory"),
    "leaves": ("os._exit(0)", "ended without a word"),
    "exits with 0": ("sys.exit(0)", "ended with code 0 before the run was done"),
}
"""What rank 1 does, and what must be said of it."""

# Python imports it when it starts: on rank 1 it puts `act` before the third step.
SITE = """
import importlib.machinery, os, sys, time

def act():
    {action}

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "attnres_train.trainer.step" or os.environ.get("RANK") != "1":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            step = module.train_step
            def train_step(parts, loader, config, state, *rest):
                if state.step == {step}:
                    act()
                return step(parts, loader, config, state, *rest)
            module.train_step = train_step
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


@pytest.fixture
def start(write_config: Callable[..., Path], tmp_path: Path) -> Iterator[Callable[..., Script]]:
    """Starts two ranks; `action` is what rank 1 does at step 3."""
    scripts: list[Script] = []

    def begin(launcher: str, action: str = "pass", timeout_seconds: int = 60) -> Script:
        (tmp_path / "site").mkdir()
        (tmp_path / "site/sitecustomize.py").write_text(SITE.format(action=action, step=STEP - 1))
        path = f"{tmp_path}/site:{os.environ.get('PYTHONPATH', '')}"
        command = [ROOT / f"launch/{launcher}.sh", write_config(parallel="pipeline = 2"), "--ranks", "2"]
        command += ["--training.steps", "5000", "--parallel.timeout_seconds", str(timeout_seconds)]
        scripts.append(Script(command, PYTHONPATH=path, TMPDIR=str(tmp_path)))
        scripts[-1].wait_for(rf"step +{STEP - 1}/5000 ")
        scripts[-1].below()
        return scripts[-1]

    yield begin
    for script in scripts:
        script.kill()


def check_last_lines(script: Script, reason: str, run: Path) -> None:
    told = script.text.rpartition("the run failed")[2]
    assert f"cause: rank 1 on {os.uname().nodename}, at step {STEP} (training): " in told, script.text
    assert reason in told and f"log:   {run}/logs/rank-0001.log" in told, script.text
    assert "Connection" not in told and "rank 0" not in told


CASES = [
    pytest.param(
        launcher, action, reason, id=f"{launcher}, {what}",
        marks=[] if (launcher, what) == ("torchrun", "raises") else [pytest.mark.slow],
    )
    for launcher in LAUNCHERS
    for what, (action, reason) in ENDS.items()
]  # fmt: skip


@pytest.mark.parametrize(("launcher", "action", "reason"), CASES)
def test_the_first_cause_is_told_last(
    launcher: str, action: str, reason: str, start: Callable[..., Script], tmp_path: Path
) -> None:
    script = start(launcher, action)
    assert script.wait(SECONDS) == 1, script.text
    check_last_lines(script, reason, tmp_path / "run")
    assert not list(tmp_path.glob("attnres-job-*")), "nothing is left in the temporary folder"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_does_not_come_is_named_with_its_stack(
    launcher: str, start: Callable[..., Script], tmp_path: Path
) -> None:
    """Nothing breaks: the others wait, and say for whom and where that one stands."""
    script = start(launcher, "time.sleep(600)", timeout_seconds=10)
    assert script.wait(10 + SECONDS) == 1, script.text
    told = script.text.rpartition("the run failed")[2]
    assert "waited 10 s at `training`; missing: rank 1 on" in told and "sitecustomize.py" in told, script.text
    assert "no progress for" in read(tmp_path / "run/logs/rank-0001.log")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("target", ["launcher", "start", "script"])
def test_nothing_outlives_what_started_it(
    launcher: str, target: str, start: Callable[..., Script], tmp_path: Path
) -> None:
    """SIGKILL of any process above the ranks: they save and end."""
    script = start(launcher)
    below = script.below()
    of_start = next(process for process, command in below.items() if "launch.start" in command)
    os.kill({"launcher": script.launcher(), "start": of_start, "script": script.process.pid}[target], signal.SIGKILL)
    deadline = time.monotonic() + SECONDS
    while left := [process for process in below if Path(f"/proc/{process}").exists()]:
        assert time.monotonic() < deadline, [read(Path(f"/proc/{process}/cmdline")) for process in left]
        time.sleep(0.1)
    stopped = max(by_step(tmp_path / "run", "loss/train"))
    assert (tmp_path / f"run/checkpoints/step-{stopped:08d}/manifest.json").is_file(), script.text
    if target == "launcher":
        assert script.wait(SECONDS) != 0
