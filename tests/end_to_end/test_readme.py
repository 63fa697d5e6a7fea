"""The commands of the README run as they are written, on a corpus small enough for a test."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnres_train.config.load import load, load_checked
from attnres_train.errors import Refused
from tests.end_to_end.conftest import ROOT, WORDS, by_step, records

README = (ROOT / "README.md").read_text(encoding="utf-8")
# What is too large for a test machine; each must occur, so that a changed README is noticed.
SMALLER = {
    "--vocab-size 32000": "--vocab-size 320",
    "--valid-fraction 0.01": "--valid-fraction 0.1",
    "--workers 16": "--workers 2",
    "--size 100m": "--size 300k",
    "--world 8": "--world 2",
    "--ranks 8": "--ranks 2",
}


def commands_under(heading: str) -> list[str]:
    """The indented lines of the first block under `heading`, without their comments."""
    section = README.split(f"\n## {heading}\n")[1]
    block = re.match(r"\s*((?:    .*\n)+)", section)
    assert block is not None
    return [line.split("#")[0].strip() for line in block.group(1).splitlines()]


def test_your_own_run(tmp_path: Path) -> None:
    """Every command in its order, from documents to a run that begins from an export, with nothing else at hand."""
    (tmp_path / "corpus").mkdir()
    generator = random.Random(2)
    for number in range(2):
        lines = [json.dumps({"text": " ".join(generator.choices(WORDS, k=50))}) + "\n" for _ in range(100)]
        (tmp_path / f"corpus/part-{number}.jsonl").write_text("".join(lines), encoding="utf-8")
    commands = commands_under("Your own run")
    own = len(commands)
    commands += commands_under("Models in and out")
    assert (own, len(commands)) == (14, 19)
    for large, small in SMALLER.items():
        assert any(large in command for command in commands), large
        commands = [command.replace(large, small) for command in commands]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    told = []
    for command in commands:
        command = command.replace("./launch/", f"{ROOT}/launch/")
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        told.append(done.stdout)
    last = load(tmp_path / "my.toml").config.training.steps
    assert max(by_step(tmp_path / "runs/my", "loss/train")) == max(by_step(tmp_path / "runs/my", "loss/valid")) == last
    assert f"step-{last:08d}: whole" in told[own - 1], "attnres verify"
    assert "the run recorded" in told[own] and told[own + 1].startswith("The")
    assert (tmp_path / "my-model/modeling_attnres.py").exists()
    assert (tmp_path / "runs/next/checkpoints/step-00000000").exists()


def test_the_smallest_file_of_the_readme_is_enough(tmp_path: Path) -> None:
    block = re.search(r"((?:    .*\n|\n)+)", README.split("everything else has a default:\n")[1])
    assert block is not None
    (tmp_path / "my.toml").write_text(re.sub(r"^    ", "", block.group(1), flags=re.MULTILINE), encoding="utf-8")
    problems = refusal_of_files(tmp_path / "my.toml")
    assert problems == {"tokenizer.model", "data.train", "data.valid"}, "which nobody has made here"


def refusal_of_files(path: Path) -> set[str]:
    with pytest.raises(Refused) as refused:
        load_checked(path, purpose="train")
    return {problem.key for problem in refused.value.problems}


def test_files_that_the_readme_names_exist() -> None:
    named = re.findall(r"`((?:attnres_train|tests|configs|launch)/[\w./]+)`", README)
    named += re.findall(r"\]\((launch/[\w./-]+)\)", README)
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


CONFIGURATIONS = [path for path in sorted((ROOT / "configs").rglob("*.toml")) if path.parent.name != "ablation"]


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.name)
def test_every_shipped_configuration_is_read(path: Path) -> None:
    assert load(path).config.model.num_layers >= 1


@pytest.mark.slow
def test_the_quickstart_beats_the_bar_and_is_done_the_second_time(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    first = subprocess.run([clone / "launch/quickstart.sh"], cwd=tmp_path, capture_output=True, text=True)
    assert first.returncode == 0, first.stdout + first.stderr
    better = re.search(r"better than the bar +([\d.]+) nats", first.stdout)
    assert better is not None and float(better.group(1)) >= 1.0
    again = subprocess.run([clone / "launch/quickstart.sh"], cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0 and "complete: 160 of 160 steps" in again.stdout
    assert records(clone / "runs/quickstart/metrics.jsonl")[-1]["step"] == 160
