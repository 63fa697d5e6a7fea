"""What a configuration names must exist."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnres_train.config.check import check_files
from attnres_train.config.load import load_checked
from attnres_train.corpora import open_corpora
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.errors import Refused
from tests.unit.config_files import flags, small, write


@pytest.fixture(autouse=True)
def _work_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def problems(tmp_path: Path, **values: object) -> list[tuple[str, str, str]]:
    return [
        (p.key, p.message, p.remedy) for p in check_files(small(tmp_path, *flags(**values)), tmp_path / "small.toml")
    ]


def test_a_configuration_that_names_no_file_has_no_problem(tmp_path: Path) -> None:
    assert problems(tmp_path) == []


def test_a_missing_tokenizer_is_named_with_its_absolute_path(tmp_path: Path) -> None:
    ((key, message, _),) = problems(tmp_path, tokenizer__model="gone.model")
    assert (key, message) == ("tokenizer.model", f"there is no file {tmp_path / 'gone.model'}")


def test_missing_halves_of_corpora_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.bin").touch()
    found = problems(tmp_path, data__train="{a = 1, b = 2}", data__valid="c")
    assert [(key, message) for key, message, _ in found] == [
        ("data.train", f"there is no file {tmp_path / 'a.idx'}"),
        ("data.train", f"there is no file {tmp_path / 'b.bin'} and no {tmp_path / 'b.idx'}"),
        ("data.valid", f"there is no file {tmp_path / 'c.bin'} and no {tmp_path / 'c.idx'}"),
    ]


def test_a_whole_corpus_is_accepted_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    write_pair(tmp_path / "a")
    assert problems(tmp_path, data__train="a") == []
    (tmp_path / "a.bin").write_bytes((tmp_path / "a.bin").read_bytes()[:-4])
    ((key, message, _),) = problems(tmp_path, data__train="a")
    assert key == "a.bin" and "400" in message and "396" in message


def write_pair(prefix: Path) -> None:
    writer = IndexedWriter(prefix, vocabulary_size=320)
    writer.add_documents(np.arange(200), np.array([200]))
    writer.finish()
    writer.publish()


@pytest.mark.parametrize("weights", ["{a = -1, b = 1}", "{a = 0, b = 0.0}"])
def test_wrong_weights_are_told_once(tmp_path: Path, weights: str) -> None:
    for name in "ab":
        write_pair(tmp_path / name)
    with pytest.raises(Refused) as refused:
        load_checked(write(tmp_path), flags(data__train=weights, data__valid="b"), purpose="check")
    assert [problem.key for problem in refused.value.problems] == ["data.train"]


def test_the_largest_weights_are_shared_out_exactly(tmp_path: Path) -> None:
    for name in "ab":
        write_pair(tmp_path / name)
    assert problems(tmp_path, data__train="{a = 1e308, b = 1.5e308}") == []
    summary = open_corpora(small(tmp_path, *flags(data__train="{a = 1e308, b = 1.5e308}"))).train.summary(10)
    assert [(source.weight, source.draws) for source in summary] == [(0.4, 4), (0.6, 6)]


def test_what_is_wrong_with_training_and_validation_data_is_told_at_once_and_once(tmp_path: Path) -> None:
    for name in "abc":
        write_pair(tmp_path / name)
        (tmp_path / f"{name}.bin").write_bytes((tmp_path / "a.bin").read_bytes()[:-4])
    found = problems(tmp_path, data__train="{a = 1, b = 1}", data__valid="{b = 1, c = 1}")
    assert [key for key, _, _ in found] == ["a.bin", "b.bin", "c.bin"]


@pytest.mark.parametrize("word", ["auto", "never"])
def test_auto_and_never_need_no_checkpoint(tmp_path: Path, word: str) -> None:
    assert problems(tmp_path, checkpoint__resume=word) == []


def test_must_needs_a_checkpoint_and_never_forbids_one(tmp_path: Path) -> None:
    ((_, message, _),) = problems(tmp_path, checkpoint__resume="must")
    checkpoints = tmp_path / "runs/small/checkpoints"
    assert message == f'is "must", but there is no checkpoint in {checkpoints}'
    (checkpoints / "step-00000010").mkdir(parents=True)
    (checkpoints / "step-00000010/manifest.json").touch()
    assert problems(tmp_path, checkpoint__resume="must") == []
    ((_, message, _),) = problems(tmp_path, checkpoint__resume="never")
    assert message == f'is "never", but {checkpoints / "step-00000010"} exists'


def test_a_resume_path_that_does_not_exist_is_named_with_its_absolute_path(tmp_path: Path) -> None:
    ((key, message, remedy),) = problems(tmp_path, checkpoint__resume="runs/x/checkpoints/step-00000010")
    assert key == "checkpoint.resume"
    assert message == f"there is no folder {tmp_path / 'runs/x/checkpoints/step-00000010'}"
    assert "auto, must or never" in remedy


def test_a_misspelt_word_of_resume_is_recognised(tmp_path: Path) -> None:
    assert problems(tmp_path, checkpoint__resume="nevr")[0][2] == 'did you mean "never"?'


def test_an_empty_folder_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ((_, message, _),) = problems(tmp_path, checkpoint__resume="empty")
    assert message == f"{tmp_path / 'empty'} is no whole checkpoint: it has no manifest.json"
