"""Resuming where the newest checkpoint is damaged, and where the model or the corpus is another; real launches."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.conftest import ROOT, Corpus, by_step, launch


@pytest.fixture(scope="module")
def standard_run(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of 30 steps of the standard residual on two ranks, with checkpoints 10, 20 and 30."""
    folder = tmp_path_factory.mktemp("standard")
    config = folder / "standard.toml"
    config.write_text(configuration(corpus, folder / "run"), encoding="utf-8")
    launch(config, 2)
    assert names(folder / "run") == {"step-00000010", "step-00000020", "step-00000030", "latest"}
    return folder / "run"


def configuration(corpus: Corpus, run: Path) -> str:
    return f"""\
[model]
num_layers = 2
hidden_size = 32
ffn_hidden_size = 48
num_attention_heads = 4
[residual]
mode = "standard"
[tokenizer]
model = "{corpus.tokenizer}"
[data]
train = "{corpus.train}"
[optimizer]
learning_rate = 1e-2
[schedule]
warmup_steps = 2
decay_steps = 40
[training]
run_folder = "{run}"
global_batch_size = 4
micro_batch_size = 2
sequence_length = 32
steps = 40
stop_after_steps = 30
precision = "fp32"
[parallel]
pipeline = 2
[checkpoint]
interval_steps = 10
keep = "none"
"""


@pytest.fixture
def copied(standard_run: Path, corpus: Corpus, tmp_path: Path) -> tuple[Path, Path]:
    """A configuration, and the copy of the run that it goes on with."""
    run = tmp_path / "run"
    shutil.copytree(standard_run, run)
    config = tmp_path / "run.toml"
    config.write_text(configuration(corpus, run), encoding="utf-8")
    return config, run


def names(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").iterdir()}


def remove_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


def empty_shard(checkpoint: Path) -> None:
    next(checkpoint.glob("*.distcp")).write_bytes(b"")


def flip_in_shard(checkpoint: Path) -> None:
    shard = next(checkpoint.glob("*.distcp"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


def cut_shard(checkpoint: Path) -> None:
    shard = next(checkpoint.glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1])


def without_launcher(
    config: Path, *overrides: str, expect: int, **environment: str
) -> subprocess.CompletedProcess[str]:
    """One rank started by hand, which takes half the time of a launch."""
    known = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "attnres_train.train", str(config), *overrides]
    done = subprocess.run(command, env=known | environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == expect, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def refused_at_once(config: Path, *overrides: str) -> str:
    """How rank 0 of two refuses before it meets the other, as that one does."""
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # where nobody listens
    return without_launcher(config, *overrides, expect=2, **told).stderr


@pytest.mark.parametrize(
    ("damage", "reason", "ranks"),
    [
        (remove_manifest, "has no manifest.json", 2),
        (flip_in_shard, ".distcp has checksum ", 1),
        pytest.param(empty_shard, ".distcp has 0 bytes, the manifest says ", 1, marks=pytest.mark.slow),
        pytest.param(cut_shard, " bytes, the manifest says ", 1, marks=pytest.mark.slow),
    ],
)
def test_a_damaged_newest_checkpoint_is_passed_over_and_stays(
    damage: Callable[[Path], None], reason: str, ranks: int, copied: tuple[Path, Path]
) -> None:
    """Two ranks by the launch script, or one alone, which also is another layout than the one that saved."""
    config, run = copied
    newest = run / "checkpoints/step-00000030"
    damage(newest)
    left = {path.name: path.stat().st_size for path in newest.iterdir()}

    before = by_step(run, "loss/train")

    if damage is not flip_in_shard:  # which shows only when all is read
        told = refused_at_once(config, "--checkpoint.resume", str(newest))
        assert str(newest) in told and reason in told and "Traceback" not in told

    short = ["--training.stop_after_steps", "22", "--checkpoint.keep", "1"]
    if ranks == 2:
        done = launch(config, 2, *short)
    else:
        done = without_launcher(config, *short, "--parallel.pipeline", "1", expect=0)
    (warning,) = [line for line in done.stdout.splitlines() if "passing over" in line]
    assert str(newest) in warning and reason in warning
    assert f"resuming from {run}/checkpoints/step-00000020 at step 20, sample 80" in done.stdout
    assert by_step(run, "loss/train") == pytest.approx({step: before[step] for step in range(1, 23)}, rel=1e-6)
    assert names(run) == {"step-00000022", "step-00000030", "latest"}, "the damaged one is not ours to delete"
    assert {path.name: path.stat().st_size for path in newest.iterdir()} == left


def test_another_model_and_corpus_are_refused_by_name_and_accepted_by_word(
    copied: tuple[Path, Path], corpus: Corpus
) -> None:
    """`standard` to `block`, and the validation documents in the place of the training ones, isolated."""
    config, run = copied
    changes = [
        "--residual.mode", "block", "--residual.block_size", "2", "--data.train", str(corpus.valid),
        "--data.isolate_documents", "true", "--training.stop_after_steps", "32",
    ]  # fmt: skip
    before = {path: path.stat().st_mtime_ns for path in (run / "checkpoints").rglob("*")}
    losses = by_step(run, "loss/train")
    readers = ["head", *(f"layers.{layer}.{branch}" for layer in range(2) for branch in ("attention", "mlp"))]
    missing = ["layers.0.attention.depth.query", "layers.1.mlp.depth.query", "head.depth.query"]

    refused = launch(config, 2, *changes, expect=2).stderr
    assert "residual.mode: was 'standard' in the checkpoint, is 'block': another model" in refused
    assert "train: was trained with train " in refused
    assert "data.isolate_documents: was false in the checkpoint, is true" in refused
    told = re.findall(r"step-00000030: (\S+): the model has it with shape \(32,\), the checkpoint lacks it", refused)
    (more,) = re.findall(r"step-00000030: (\d+) more: likewise, the last of them (\S+)", refused)
    assert len(told) == 3 and len(told) + int(more[0]) == 2 * 5, "query and gain of each reader, on one screen"
    assert {*told, more[1]} <= {f"{name}.depth.{part}" for name in readers for part in ("query", "gain")}
    for word in ("missing", "settings", "data"):
        assert f'accept it with "{word}" in checkpoint.allow' in refused
    assert "attnres_train/" not in refused, "a traceback of ours"

    half_allowed = ["--checkpoint.allow", '["missing", "settings"]', "--parallel.pipeline", "1"]
    half = without_launcher(config, *changes, *half_allowed, expect=2).stderr
    assert "train: was trained with train " in half and "depth" not in half and "residual.mode" not in half
    assert {path: path.stat().st_mtime_ns for path in (run / "checkpoints").rglob("*")} == before
    assert by_step(run, "loss/train") == losses, "a refused resume leaves the run as it was"

    done = launch(config, 2, *changes, "--checkpoint.allow", '["missing", "settings", "data"]').stdout
    assert "resuming from" in done and "at step 30, sample 120" in done
    for name in missing:
        assert f"accepted as missing: {name}: the model has it with shape (32,)" in done
    assert "accepted as settings: residual.mode: was 'standard'" in done
    assert "accepted as data: train: was trained with train " in done
    assert "accepted as data: data.isolate_documents: was false" in done
    assert f"{corpus.train}: no longer drawn from, after 120 samples" in done
    after = by_step(run, "loss/train")
    assert list(after) == list(range(1, 33))
    assert {step: after[step] for step in losses} == losses
    assert after[31] < losses[1] - 0.3, "the weights that were there have been kept"
