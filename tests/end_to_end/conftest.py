"""A small corpus made with the real tools, and runs started with the real launch script."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORDS = "the people of this union have a government by law and peace with all nations is our policy".split()


@dataclass(frozen=True)
class Corpus:
    folder: Path

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer.model"

    @property
    def train(self) -> Path:
        return self.folder / "train"

    @property
    def valid(self) -> Path:
        return self.folder / "valid"


def tool(name: str, *arguments: str | Path) -> None:
    subprocess.run(
        [sys.executable, "-m", f"data_tools.{name}", *map(str, arguments)],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """300 documents in 320 pieces."""
    made = Corpus(tmp_path_factory.mktemp("corpus"))
    generator = random.Random(1)
    with open(made.folder / "all.jsonl", "w", encoding="utf-8") as file:
        for _ in range(300):
            text = " ".join(generator.choices(WORDS, k=generator.randint(20, 60)))
            file.write(json.dumps({"text": text}) + "\n")
    parts = {name: made.folder / f"{name}.jsonl" for name in ("train", "valid")}
    tool(
        "split",
        made.folder / "all.jsonl",
        "--train",
        parts["train"],
        "--valid",
        parts["valid"],
        "--valid-fraction",
        "0.2",
    )
    tool("train_tokenizer", parts["train"], "--vocab-size", "320", "--output", made.tokenizer)
    for name, path in parts.items():
        tool(
            "preprocess",
            path,
            "--tokenizer",
            made.tokenizer,
            "--output",
            made.folder / name,
            "--workers",
            "1",
        )
    return made


@pytest.fixture
def write_config(corpus: Corpus, tmp_path: Path) -> Callable[..., Path]:
    """Writes a tiny configuration; keyword arguments are extra lines by section."""

    def write(**sections: str) -> Path:
        base = {
            "model": "num_layers = 3\nhidden_size = 32\nffn_hidden_size = 48\nnum_attention_heads = 4\nqk_norm = true",
            "residual": 'mode = "block"\nblock_size = 3',
            "tokenizer": f'model = "{corpus.tokenizer}"',
            "data": f'train = "{corpus.train}"\nvalid = "{corpus.valid}"',
            "optimizer": "learning_rate = 1e-2",
            "schedule": "warmup_steps = 2",
            "training": f'run_folder = "{tmp_path}/run"\nglobal_batch_size = 8\nmicro_batch_size = 2\n'
            'sequence_length = 32\nsteps = 12\nprecision = "fp32"\neval_samples = 12',
            "checkpoint": "interval_steps = 5",
            "observe": "sample_log = true",
        }
        names = base.keys() | sections.keys()
        text = "\n".join(f"[{name}]\n{base.get(name, '')}\n{sections.get(name, '')}" for name in sorted(names))
        path = tmp_path / "tiny.toml"
        path.write_text(text + "\n", encoding="utf-8")
        return path

    return write


def launch(config: Path, ranks: int, *overrides: str, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Run the launch script to its end; `expect` is the exit code it must have, None allows any."""
    command = [ROOT / "launch" / "torchrun.sh", config, "--ranks", str(ranks), *overrides]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=240)
    if expect is not None:
        assert done.returncode == expect, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def by_step(run: Path, tag: str) -> dict[int, float]:
    """Values of `tag` in metrics.jsonl; a step that is there twice is an error."""
    found: dict[int, float] = {}
    for record in records(run / "metrics.jsonl"):
        if tag in record:
            assert record["step"] not in found, f"{tag} of step {record['step']} is recorded twice"
            found[record["step"]] = record[tag]
    return found
