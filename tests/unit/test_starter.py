"""`attnres init`: a first configuration for a prepared corpus, by rules that it states."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest

from attnres_train.config.load import load_checked
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.errors import Refused
from attnres_train.starter.rules import recipe_of, window_of
from attnres_train.starter.shape import read_size, shape_of, size_in_words
from attnres_train.tokenizer.training import TrainingOptions, train_model
from data_tools.preprocess import main as preprocess
from tests.unit.test_cli import as_json, run

TEXTS = ["a banana and a bandana, ", "in the band and on the bank; ", "0 1 2 3 and more of them. "]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pairs `train` and `valid` and, above it, their tokenizer."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "tokenizer.model").write_bytes(train_model(TEXTS * 20, TrainingOptions(vocab_size=290)))
    for name, documents in (("train", 400), ("valid", 40)):
        lines = [json.dumps({"text": TEXTS[number % 3] * (20 + number % 7)}) + "\n" for number in range(documents)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
        made = ["--tokenizer", str(folder / "tokenizer.model"), "--output", str(folder / f"tokens/{name}")]
        assert preprocess([str(folder / f"{name}.jsonl"), *made, "--workers", "1"]) == 0
    return folder


def test_what_is_written_passes_the_check_and_is_of_the_size(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(prepared)
    output = tmp_path / "my.toml"
    assert run("init", "tokens", "--size", "300k", "--ranks", 2, "--output", output, "--json") == 0
    found = as_json(capsys)
    assert output.read_text() == found["text"]
    assert run("check", output, "--world", 2) == 0
    config = load_checked(output, [], 2, "train").config
    assert (config.data.train, config.data.valid, config.tokenizer.model) == (
        "tokens/train",
        "tokens/valid",
        "tokenizer.model",
    )
    assert config.residual.mode == "block" and config.training.precision == "fp32"
    assert 240_000 <= found["parameters"] <= 360_000
    steps, rate = config.training.steps, config.optimizer.learning_rate
    assert config.training.eval_interval_steps == config.checkpoint.interval_steps == steps // 10 > 1
    assert (config.schedule.warmup_steps, config.schedule.decay_steps) == (steps // 20, steps // 5)
    assert config.schedule.kind == "wsd" and config.schedule.min_learning_rate == pytest.approx(rate / 10, rel=0.05)
    assert config.engine.kind == "megatron", "no DeepSpeed where it fits without"
    assert "arXiv 2401.02954" in found["text"]
    capsys.readouterr()
    assert run("init", "tokens", "--size", "300k", "--ranks", 2, "--output", output) == 2
    assert found["notes"] == [] or "a parameter" in found["notes"][0]
    assert "is there already" in capsys.readouterr().err and output.read_text() == found["text"]


def test_windows_and_evaluations_fit_into_the_validation_data(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 1,280 tokens the last label would be the 1,281st: nine whole windows of 128, of which eight had to fit."""
    for end in (".bin", ".idx", ".json"):
        (tmp_path / f"train{end}").write_bytes((prepared / f"tokens/train{end}").read_bytes())
    with IndexedWriter(tmp_path / "valid", 290) as writer:
        writer.add_documents(np.full(1280, 5), np.array([1280]))
        writer.finish()
        writer.publish()
    tokenizer = str(prepared / "tokenizer.model")
    output = tmp_path / "my.toml"
    assert run("init", tmp_path, "--size", "300k", "--ranks", 1, "--tokenizer", tokenizer, "--output", output) == 0
    training = load_checked(output, [], 1, "train").config.training
    assert (training.sequence_length, training.eval_samples) == (128, 9)


def test_a_prefix_without_validation_data_trains_without(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for end in (".bin", ".idx", ".json"):
        (tmp_path / f"alone{end}").write_bytes((prepared / f"tokens/train{end}").read_bytes())
    tokenizer = prepared / "tokenizer.model"
    command = ("init", tmp_path / "alone", "--size", "300k", "--ranks", 1)
    assert run(*command) == 2
    assert "name it: --tokenizer FILE" in capsys.readouterr().err, "no such tokenizer lies there"
    for place in (tmp_path / "alone", tmp_path / "alone.bin", tmp_path):
        assert run("init", place, *command[2:], "--tokenizer", tokenizer) == 0
        text = capsys.readouterr().out
        assert f'train = "{tmp_path}/alone"' in text and "valid =" not in text and "eval_interval" not in text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--size", "big"], "'big' is no number of parameters such as 20m"),
        (["--size", "0m"], "is no number of parameters"),
        (["--size", "1k"], "1,000 parameters: the nearest model has"),
        (["--size", "9000b"], "9,000,000,000,000 parameters: the nearest model has"),
        (["--size", "7b"], "tokens of text give"),
        (["--size", "300k", "--ranks", "0"], "is not a number of ranks, 1 or more"),
        (["--size", "300k", "--ranks", "4096"], "tokens of text give"),
        (["--size", "300k", "--device", "abacus"], "'abacus' is neither a device"),
        (["--size", "300k", "--output", "nowhere/my.toml"], "there is no folder"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    monkeypatch.chdir(prepared)
    ranks = [] if "--ranks" in more else ["--ranks", "2"]
    assert run("init", "tokens", *more, *ranks) == 2
    assert words in capsys.readouterr().err


def test_corpora_that_are_not_there_are_refused_in_words(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "half.bin").touch()
    many = tmp_path / "many"
    many.mkdir()
    for name in ("a", "b"):
        for end in (".bin", ".idx"):
            (many / f"{name}{end}").write_bytes((prepared / f"tokens/valid{end}").read_bytes())
    for place, words in (
        (tmp_path, "holds no .bin/.idx pair"),
        (tmp_path / "gone", "gone.bin and no "),
        (tmp_path / "half", "half.idx"),
        (many, f"name the one to train on, such as {many}/a"),
        (many / "a", "does not say what tokenizer it was made with"),
    ):
        assert run("init", place, "--size", "300k", "--ranks", 1) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("size", ["4m", "20m", "60m", "100m", "1b", "1.3b", "3b", "7b", "70b"])
def test_sizes_are_met_by_sound_shapes(size: str) -> None:
    vocabulary = 4096 if read_size(size) < 20e6 else 32_000
    shape = shape_of(read_size(size), vocabulary)
    model = shape.model
    assert abs(log(shape.parameters / read_size(size))) < 0.12
    assert 40 <= model.hidden_size / model.num_layers <= 180
    assert model.hidden_size % model.num_attention_heads == 0
    assert model.num_attention_heads % (4 if read_size(size) >= 1e9 else 1) == 0
    assert 1 <= shape.blocks <= 12
    assert read_size(size_in_words(shape.parameters)) == pytest.approx(shape.parameters, rel=0.01)
    assert model.tie_embeddings == (2 * vocabulary * model.hidden_size > read_size(size) / 4)


def test_tables_are_tied_where_two_would_be_over_a_quarter() -> None:
    tied = {size: shape_of(read_size(size), 32_000).model for size in ("100m", "200m", "400m", "1b")}
    shares = {size: 2 * 32_000 * model.hidden_size / read_size(size) for size, model in tied.items()}
    assert any(0.25 < share < 0.5 for share in shares.values()), shares
    assert {size: model.tie_embeddings for size, model in tied.items()} == {
        size: share > 0.25 for size, share in shares.items()
    }


def test_sizes_are_read_in_thousands() -> None:
    read = [read_size(text) for text in ("7", "300k", "1.5m", "1.3B ")]
    assert read == [7, 300_000, 1_500_000, 1_300_000_000]


def test_rates_are_those_of_the_published_fit() -> None:
    """At 1e18 FLOPs, by hand: 0.3118 * 10^(-18 * 0.1250) and 0.2920 * 10^(18 * 0.3271)."""
    shape = shape_of(100_000_000, 32_000)
    made = recipe_of(shape.model, shape.parameters, 10**11, 1024, 8)
    model = shape.model
    attention = 2 * model.hidden_size * (model.hidden_size + model.query_groups * model.head_size)
    matrices = model.num_layers * (attention + 3 * model.hidden_size * model.ffn_hidden_size)
    per_token = 6 * matrices + 12 * model.num_layers * model.hidden_size * 1024
    assert made.compute == pytest.approx(per_token * 20 * shape.parameters, rel=1e-12)
    assert (made.warmup_steps, made.decay_steps) == (made.steps // 20, made.steps // 5)
    assert replace(made, steps=50_000).warmup_steps == 2000 and replace(made, steps=3).decay_steps == 1
    scale = made.compute / 1e18
    assert made.learning_rate == pytest.approx(0.3118 * 10**-2.25 * scale**-0.125)
    assert made.batch_by_rule * 1024 == pytest.approx(0.2920 * 10**5.8878 * scale**0.3271)
    tokens = made.steps * made.global_batch_size * 1024
    assert tokens == pytest.approx(20 * shape.parameters, rel=0.01) and made.passes < 1
    assert made.global_batch_size % 8 == 0 and made.global_batch_size == pytest.approx(made.batch_by_rule, rel=0.2)
    short = recipe_of(shape.model, shape.parameters, 10**7, 1024, 8)
    assert short.passes == pytest.approx(4, rel=0.02), "no more than four passes over the text"
    with pytest.raises(Refused, match="smaller model"):
        recipe_of(shape.model, shape.parameters, 10**4, 1024, 8)


def test_windows_are_as_long_as_model_and_corpus_bear() -> None:
    windows = [window_of(parameters, 10**9) for parameters in (10**6, 10**8, 10**9, 10**10)]
    assert windows == [256, 1024, 2048, 4096]
    bounds = [window_of(parameters + more, 10**9) for parameters in (10**7, 5 * 10**8, 3 * 10**9) for more in (0, 1)]
    assert bounds == [256, 1024, 1024, 2048, 2048, 4096]
    assert window_of(10**8, 3000) == 256, "eight windows at least"
    assert [window_of(10**6, tokens) for tokens in (2049, 2048)] == [256, 128], "and the label of the last"
