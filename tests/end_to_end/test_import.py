"""A run of DeepSpeed's, imported by the command and gone on with by a real launch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnres_train.config.load import load
from attnres_train.config.resolve import vocabulary_size
from attnres_train.engine.deepspeed_patches import import_deepspeed
from tests.distributed import stock
from tests.distributed.ranks import run_ranks
from tests.end_to_end.conftest import by_step, launch, records


@pytest.mark.slow
def test_a_launch_goes_on_from_what_was_imported(
    write_config: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config()
    config = load(path).config
    monkeypatch.setattr(stock, "VOCABULARY", vocabulary_size(config))
    monkeypatch.setattr(stock.StockRun, "config", config)
    import_deepspeed()
    run_ranks(stock.train_stock, 2, stock.StockRun(2, look=False, further=0), tmp_path / "deepspeed")
    command = [sys.executable, "-m", "attnres_train.cli", "import", tmp_path / "deepspeed", path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["checkpoint"] == str(tmp_path / "run/checkpoints/step-00000003") and found["step"] == 3
    assert found["samples"] == 24 and len(found["notes"]) == 1
    told = launch(path, 2, "--parallel.pipeline", "2").stdout
    assert "resuming from" in told and "at step 3, sample 24" in told
    assert list(by_step(tmp_path / "run", "loss/train")) == list(range(4, 13))
    assert records(tmp_path / "run/samples.jsonl")[0]["step"] == 4
    rates = by_step(tmp_path / "run", "optim/lr")
    assert f"{rates[4]:.6g}" in found["notes"][0]
