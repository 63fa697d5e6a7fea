"""A whole run under the engine of DeepSpeed, and on under the other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.conftest import ROOT, by_step


def train(config: Path, compiled: Path, *overrides: str) -> str:
    """On two ranks; what DeepSpeed compiles would lie in `compiled`."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "attnres_train.train", str(config), *overrides]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(compiled)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not compiled.exists(), "nothing is compiled"
    assert "[INFO]" not in done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_run_goes_on_under_the_other_engine(write_config: Callable[..., Path], tmp_path: Path) -> None:
    config, run = write_config(), tmp_path / "run"
    zero = ("--engine.kind", "deepspeed", "--engine.deepspeed.zero_stage")
    compiled = tmp_path / "extensions"
    train(config, compiled, "--training.run_folder", str(tmp_path / "megatron"))
    train(config, compiled, "--training.stop_after_steps", "4", *zero, "3")
    train(config, compiled, "--training.stop_after_steps", "8")
    assert 'engine.kind: was "megatron"' in train(config, compiled, *zero, "2").replace("'", '"')
    for tag in ("loss/train", "optim/grad_norm", "loss/valid"):
        expected, found = by_step(tmp_path / "megatron", tag), by_step(run, tag)
        assert found[12] == pytest.approx(expected[12], rel=1e-4)
        for step in found.keys() & expected.keys():
            assert found[step] == pytest.approx(expected[step], rel=1e-4)
