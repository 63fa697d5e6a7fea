"""What follows from a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnres_train.config.load import load_checked
from attnres_train.config.resolve import run_folder, vocabulary_size
from attnres_train.errors import Refused
from attnres_train.setup import Setup
from tests.unit.config_files import flags, small, write


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentencepiece model of exactly 300 entries."""
    from sentencepiece import SentencePieceTrainer

    folder = tmp_path_factory.mktemp("tokenizer")
    text = folder / "text.txt"
    text.write_text("a small corpus of a few words and a few more\n" * 20)
    SentencePieceTrainer.Train(
        input=str(text),
        model_prefix=str(folder / "small"),
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    return folder / "small.model"


def test_the_vocabulary_is_that_of_the_tokenizer_model(tmp_path: Path, tokenizer: Path) -> None:
    config = small(tmp_path, *flags(tokenizer__model=tokenizer, tokenizer__vocab_size="none"))
    assert vocabulary_size(config) == 300


def test_a_stated_size_stands_alone_or_in_for_a_model_that_is_not_there(tmp_path: Path) -> None:
    assert vocabulary_size(small(tmp_path)) == 320
    assert vocabulary_size(small(tmp_path, *flags(tokenizer__model=tmp_path / "gone"))) == 320


def test_a_stated_size_that_differs_from_the_model_is_refused_when_checked(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(Refused) as caught:
        load_checked(write(tmp_path), flags(tokenizer__model=tokenizer), purpose="check")
    (problem,) = caught.value.problems
    assert problem.key == "tokenizer.vocab_size"
    assert problem.message.startswith(f"320, but {tokenizer} has 300 entries")


def test_no_vocabulary_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="vocabulary size is not known"):
        vocabulary_size(small(tmp_path, *flags(tokenizer__vocab_size="none")))


def test_a_missing_model_without_a_stated_size_is_refused_with_its_absolute_path(tmp_path: Path) -> None:
    config = small(tmp_path, *flags(tokenizer__vocab_size="none", tokenizer__model=tmp_path / "gone.model"))
    with pytest.raises(Refused, match=f"there is no file {tmp_path / 'gone.model'}"):
        vocabulary_size(config)


def test_a_file_that_is_no_tokenizer_is_refused_when_checked(tmp_path: Path) -> None:
    fake = tmp_path / "fake.model"
    fake.write_text("not a model")
    with pytest.raises(Refused) as caught:
        load_checked(write(tmp_path), flags(tokenizer__model=fake, tokenizer__vocab_size="none"), purpose="check")
    assert str(fake) in str(caught.value)


def test_7_layers_on_2_stages_are_4_and_3(tmp_path: Path) -> None:
    assert Setup.of(
        small(tmp_path, *flags(model__num_layers=7, parallel__pipeline=2)), vocabulary=320
    ).layers_per_stage == (4, 3)


def test_stated_counts_are_taken_as_they_are(tmp_path: Path) -> None:
    settings = flags(parallel__pipeline=3, parallel__layers_per_stage="[1, 3, 0]")
    assert Setup.of(small(tmp_path, *settings), vocabulary=320).layers_per_stage == (1, 3, 0)


def test_a_large_vocabulary_takes_layers_off_the_last_stage(tmp_path: Path) -> None:
    config = small(tmp_path, *flags(model__num_layers=8, parallel__pipeline=2, parallel__balance="cost"))
    few, many = (Setup.of(config, vocabulary=size).layers_per_stage for size in (320, 4096))
    assert few == (4, 4)
    assert sum(many) == 8 and many[1] < 4


def test_micro_batches_are_the_global_batch_over_micro_batch_and_data_degree(tmp_path: Path) -> None:
    config = small(tmp_path, *flags(training__global_batch_size=16, parallel__pipeline=2))
    assert Setup.of(config, 2, 320).micro_batches == 8
    assert Setup.of(config, 4, 320).micro_batches == 4


def test_the_run_folder_is_named_after_the_file_unless_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_folder(small(tmp_path), "configs/first.toml") == tmp_path / "runs/first"
    assert run_folder(small(tmp_path, *flags(training__run_folder="r")), "configs/first.toml") == tmp_path / "r"
