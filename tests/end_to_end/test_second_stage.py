"""The README's commands from one run to the next: a mean, a run that begins with it, its export; a run made longer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnres_train.checkpoint.manifest import read_manifest
from tests.end_to_end.conftest import ROOT, Corpus, by_step, launch, records

README = (ROOT / "README.md").read_text(encoding="utf-8")
SMALLER = {
    "--ranks 8": "--ranks 2",
    "step-00010000": "step-00000012",
    "--training.steps 12000": "--training.steps 16",
    "--schedule.decay_steps 1000": "--schedule.decay_steps 2",
    "tokens/more": "MORE",
}


def commands() -> list[str]:
    """Every indented line of the section, without its comment; what ends in a backslash goes on in the next."""
    section = README.split("\n## From one run to the next\n")[1].split("\n## ")[0].replace("\\\n", " ")
    return [line.split(" # ")[0].strip() for line in section.splitlines() if line.startswith("    ")]


def run(command: str, folder: Path) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = command.replace("./launch/", f"{ROOT}/launch/")
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_commands_from_one_run_to_the_next(
    write_config: Callable[..., Path], corpus: Corpus, tmp_path: Path
) -> None:
    text = write_config().read_text(encoding="utf-8").replace(f"{tmp_path}/run", "runs/my")
    (tmp_path / "my.toml").write_text(text, encoding="utf-8")
    second = text.replace("runs/my", "runs/second").replace("steps = 12", "steps = 6")
    second = second.replace("learning_rate = 1e-2", "learning_rate = 1e-3\naverage_decay = 0.999")
    second = second.replace("interval_steps = 5", 'interval_steps = 5\nresume = "my-mean"\nload = "weights"')
    (tmp_path / "second.toml").write_text(second, encoding="utf-8")
    given = commands()
    assert len(given) == 5
    for large, small in SMALLER.items():
        assert any(large in command for command in given), large
        given = [command.replace(large, small.replace("MORE", str(corpus.valid))) for command in given]
    run(f"./launch/torchrun.sh my.toml --ranks 2 --training.run_folder {tmp_path}/runs/my", tmp_path)
    merge, inspect, begin, export, longer = given

    run(merge, tmp_path)
    shown = " ".join(run(inspect, tmp_path).split())
    assert "a mean of" in shown and "step-00000012 (step 12)" in shown
    told = run(begin, tmp_path)
    assert f"beginning at step 0 with the weights of {tmp_path}/my-mean, which is at step 12" in told
    first, begun = (by_step(tmp_path / "runs" / name, "loss/train") for name in ("my", "second"))
    assert list(begun) == list(range(1, 7)) and begun[1] < first[1] - 0.5, "the weights are those of the mean"
    rates = by_step(tmp_path / "runs/second", "optim/lr")
    assert (rates[1], rates[2]) == pytest.approx((5e-4, 1e-3)), "the schedule is new, its warm-up too"
    samples = [records(tmp_path / "runs" / name / "samples.jsonl")[0] for name in ("my", "second")]
    assert samples[0] == samples[1], "the first samples come first again"
    whole = read_manifest(tmp_path / "runs/second/checkpoints/step-00000006")
    assert (whole.samples, whole.optimizer_updates) == (48, 6) and whole.origin is not None
    run(export, tmp_path)
    assert json.loads((tmp_path / "my-second/config.json").read_text())["model_type"] == "attnres"

    told = run(longer, tmp_path)
    assert re.search(r"learning rate of step 13: would have been \S+, is 0.0001", told)
    assert "accepted as data: train: was trained with train " in told
    after = by_step(tmp_path / "runs/longer", "loss/train")
    assert list(after) == list(range(13, 17)) and after[13] < first[1] - 0.5
    assert read_manifest(tmp_path / "runs/longer/checkpoints/step-00000016").optimizer_updates == 16


@pytest.mark.slow
def test_weights_go_into_no_run_that_has_begun_otherwise(write_config: Callable[..., Path], tmp_path: Path) -> None:
    """facebookresearch/maskrcnn-benchmark#372: a second stage found the end of the first, and trained nothing."""
    config = write_config(training="stop_after_steps = 6")
    launch(config, 1)
    newest = tmp_path / "run/checkpoints/step-00000006"
    again = ["--checkpoint.resume", str(newest), "--checkpoint.load", "weights"]
    told = launch(config, 1, *again, expect=2).stderr
    assert "is of this run, which step 0 would begin anew" in told and "another training.run_folder" in told
    told = launch(config, 1, "--checkpoint.load", "weights", expect=2).stderr
    assert 'checkpoint.load: "weights", but checkpoint.resume = "auto" names no checkpoint' in told
    elsewhere = ["--training.run_folder", str(tmp_path / "second")]
    launch(config, 1, *again, *elsewhere, "--training.stop_after_steps", "3")
    told = launch(config, 1, *again, *elsewhere).stdout
    assert "step-00000003 at step 3, sample 24" in told
    assert max(by_step(tmp_path / "second", "loss/train")) == 6


@pytest.mark.slow
def test_the_weights_of_one_mode_begin_a_run_of_another(
    write_config: Callable[..., Path], corpus: Corpus, tmp_path: Path
) -> None:
    """What the model lacks or has besides needs its word, as in an exact resume; other data and another seed do not."""
    config = write_config(training="stop_after_steps = 6")
    launch(config, 1)
    begin = [
        "--checkpoint.resume", str(tmp_path / "run/checkpoints/step-00000006"), "--checkpoint.load", "weights",
        "--training.run_folder", str(tmp_path / "full"), "--residual.mode", "full", "--training.seed", "7",
        "--data.train", str(corpus.valid), "--training.stop_after_steps", "2",
    ]  # fmt: skip
    told = launch(config, 1, *begin, expect=2).stderr
    assert "residual.mode: was 'block' in the checkpoint, is 'full': another model" in told
    assert "train: was trained with" not in told and "training.seed" not in told
    told = launch(config, 1, *begin, "--checkpoint.allow", '["settings"]').stdout
    assert "accepted as settings: residual.mode: was 'block'" in told
    begun, first = (by_step(tmp_path / name, "loss/train") for name in ("full", "run"))
    assert list(begun) == [1, 2] and begun[1] < first[1] - 0.3
