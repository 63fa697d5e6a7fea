"""What a user does with a run when it is done: evaluate it, let it go on with a text, take it out, begin from it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import ROOT, Corpus, by_step, launch


def attnres(*arguments: object, expect: int = 0) -> str:
    command = [sys.executable, "-m", "attnres_train.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout if expect == 0 else done.stderr


def evaluated(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(attnres("evaluate", *arguments, "--json"))
    return found


def on_two_ranks(*arguments: object) -> dict[str, Any]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "attnres_train.evaluate", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_run_is_evaluated_as_it_recorded_and_goes_on_with_a_text(
    write_config: Callable[..., Path], corpus: Corpus, tmp_path: Path
) -> None:
    config, run = write_config(parallel="pipeline = 2"), tmp_path / "run"
    launch(config, 2)
    recorded = by_step(run, "loss/valid")[12]
    found = evaluated(run)
    assert found["loss"] == pytest.approx(recorded, rel=1e-6) and found["recorded_loss"] == recorded
    assert found["bits_per_byte"] == pytest.approx(by_step(run, "loss/valid_bits_per_byte")[12], rel=1e-6)
    assert (found["tokens"], found["samples"], found["step"]) == (12 * 32, 12, 12)
    parts = found["positions"]
    assert [(part["from"], part["to"]) for part in parts] == [(4 * n, 4 * n + 4) for n in range(8)]
    assert sum(part["loss"] for part in parts) / 8 == pytest.approx(recorded, rel=1e-6)
    both = on_two_ranks(run, "--parallel.tensor", 2, "--data", corpus.train, "--data", corpus.valid, "--samples", 12)
    assert both["sets"][str(corpus.valid)]["loss"] == pytest.approx(recorded, rel=1e-5)
    assert both["tokens"] == 2 * 12 * 32 and both["recorded_loss"] is None
    mean = sum(one["loss"] for one in both["sets"].values()) / 2
    assert both["loss"] == pytest.approx(mean, rel=1e-12)
    assert attnres("generate", run, "--prompt", "the people of", "--max-tokens", 12).startswith("the people of")


@pytest.mark.slow
def test_a_run_goes_out_and_comes_in_again(write_config: Callable[..., Path], corpus: Corpus, tmp_path: Path) -> None:
    config, run = write_config(), tmp_path / "run"
    launch(config, 1)
    prompt = ("generate", run, "--prompt", "the people of", "--max-tokens", 12, "--seed", 3)
    alone = attnres(*prompt)
    assert alone == attnres(*prompt)
    several = json.loads(attnres(*prompt, "--prompt", "peace with all nations is our policy", "--json"))
    assert several["texts"][0]["prompt"] + several["texts"][0]["text"] + "\n" == alone
    assert alone != attnres(*prompt[:-1], 4)

    out, again = tmp_path / "out", tmp_path / "again"
    attnres("export", run, out, "--dtype", "fp32")
    attnres("import", out, "--config-only", tmp_path / "again.toml")
    options = ("--training.run_folder", again, "--tokenizer.model", corpus.tokenizer)
    attnres("import", out, tmp_path / "again.toml", *options)
    data = ("--data", corpus.valid, "--samples", 12, "--training.sequence_length", 32, "--training.precision", "fp32")
    assert evaluated(again, *data)["loss"] == evaluated(run)["loss"]

    assert "another model" in attnres("evaluate", run, "--model.norm_eps", "1e-3", expect=2)
    assert "no number of windows" in attnres("evaluate", run, "--samples", "few", expect=2)
    assert "not given" in attnres("generate", run, expect=2)
    assert "neither a checkpoint nor a run" in attnres("evaluate", tmp_path, expect=2)
