"""A configuration file and flags to a `RunConfig`, or to every problem at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from attnres_train.config.load import load, load_checked
from attnres_train.errors import Refused
from tests.unit.config_files import SMALL, flags, refusal, write


def edited(old: str, new: str) -> str:
    assert old in SMALL
    return SMALL.replace(old, new)


def test_every_value_has_its_origin(tmp_path: Path) -> None:
    path = write(tmp_path)
    loaded = load(path, ["--training.steps", "30"])
    assert loaded.config.training.steps == 30
    assert loaded.origins["training.steps"] == "command line"
    assert loaded.origins["model.hidden_size"] == f"{path}:3"
    assert loaded.origins["training.seed"] == "default"


def test_misspelt_and_misplaced_settings_are_all_refused_at_once_with_nearest_names(
    tmp_path: Path,
) -> None:
    """A misspelt key, `lr` at the wrong level, size "64k", a key twice, an unknown flag, a deepspeed key."""
    text = edited("hidden_size = 64\n", 'hidden_size = "64k"\n')
    text = "lr = 3e-4\n" + text + "seed = 1\nseed = 2\n[optimizer]\nlearing_rate = 1e-3\n"
    path = write(tmp_path, text + '[engine]\nkind = "deepspeed"\n[engine.deepspeed]\ngradient_acumulation_steps = 4\n')
    start = time.monotonic()
    found = refusal(path, ["--learing_rate", "1e-3"])
    assert time.monotonic() - start < 20
    lines = {name: number for number, name in enumerate(path.read_text().split("\n"), 1)}

    assert found["lr"].message == f"unknown key ({path}:1)"
    assert found["lr"].remedy == "did you mean optimizer.learning_rate?"
    assert f"{path}:{lines['learing_rate = 1e-3']}" in found["optimizer.learing_rate"].message
    assert "optimizer.learning_rate" in found["optimizer.learing_rate"].remedy
    size = lines['hidden_size = "64k"']
    assert found["model.hidden_size"].message == f'"64k" is not an integer of at least 1 ({path}:{size})'
    first, second = lines["seed = 1"], lines["seed = 2"]
    assert f"stands twice, on line {first} and on line {second}" in found["training.seed"].message
    assert found["--learing_rate"].message == "unknown flag (command line)"
    assert found["--learing_rate"].remedy == "did you mean --optimizer.learning_rate?"
    key = "engine.deepspeed.gradient_acumulation_steps"
    assert f"{path}:{lines['gradient_acumulation_steps = 4']}" in found[key].message
    assert "training.accumulation" in found[key].remedy
    assert len(found) == 6


def test_an_unquoted_size_with_a_unit_is_named_with_line_and_remedy(tmp_path: Path) -> None:
    path = write(tmp_path, edited("hidden_size = 64\n", "hidden_size = 64k\n"))
    (problem,) = refusal(path).values()
    assert (problem.key, problem.message) == ("model.hidden_size", f"64k is not TOML ({path}:3)")
    assert problem.remedy == "write an integer of at least 1"


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--model.num_layers=4.0", "4.0 is not an integer of at least 1"),
        ("--model.num_layers=0", "0 is not an integer of at least 1"),
        ("--model.num_layers=true", "true is not an integer of at least 1"),
        ("--optimizer.beta1=1.0", "1.0 is not a number of at least 0 and below 1"),
        ("--optimizer.learning_rate=nan", "nan is not a finite number"),
        ("--optimizer.learning_rate=-inf", "-inf is not a finite number"),
        ("--parallel.sequence=1", "1 is not true or false"),
        ("--parallel.layers_per_stage=[1, 2.5]", '[1, 2.5] is not a list of integers, or "none"'),
        ("--observe.profile_steps=[3]", '[3] is not a list of 2 integers, or "none"'),
        ("--observe.profile_steps=[]", '[] is not a list of 2 integers, or "none"'),
        ("--observe.profile_steps=[3, 4, 5]", '[3, 4, 5] is not a list of 2 integers, or "none"'),
        ("--data.train=[1]", '[1] is not a text, or a table {"prefix" = weight}, or "none"'),
        ('--data.train={a = "x"}', '{a = "x"} is not a text, or a table {"prefix" = weight}, or "none"'),
        ("--data.train={a = inf}", "is not a text, or a table"),
        ("--model.num_layers=2026-11-29", '2026-11-29" is not an integer of at least 1'),
        (
            "--checkpoint.allow=[3]",
            '[3] is not a list of "missing", "extra", "moments", "settings", "data", "tokenizer"',
        ),
        ("--parallel.sequence=1_1", "1_1 is not true or false"),
        ("--model.num_layers=none", '"none" is not an integer of at least 1'),
    ],
)
def test_a_wrong_value_says_what_was_written_and_what_is_taken(tmp_path: Path, flag: str, message: str) -> None:
    (problem,) = refusal(write(tmp_path), [flag]).values()
    assert f"--{problem.key}" == flag.partition("=")[0]
    assert message in problem.message
    assert problem.message.endswith("(command line)")


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [
        ('--model.num_layers="12"', "write it without quotes: 12"),
        ("--residual.mode=blok", 'did you mean "block"?'),
        ("--training.precision=b16", 'did you mean "bf16"?'),
        ("--checkpoint.allow=dat", 'write a list: ["data"]'),
        ("--parallel.layers_per_stage=12", "write a list: [12]"),
        ("--training.steps=1e4", "write 10000"),
    ],
)
def test_the_remedy_of_a_wrong_text_is_as_near_as_can_be(tmp_path: Path, flag: str, remedy: str) -> None:
    (problem,) = refusal(write(tmp_path), [flag]).values()
    assert problem.remedy == remedy


@pytest.mark.parametrize(
    ("flag", "key"),
    [
        ("--parallel.context=2", "parallel.context"),
        ("--parallel.expert=2", "parallel.expert"),
    ],
)
def test_what_this_version_does_not_have_is_refused_in_words(tmp_path: Path, flag: str, key: str) -> None:
    found = refusal(write(tmp_path), [flag])
    assert list(found) == [key]
    assert "not in this version" in found[key].message


def test_missing_required_keys_are_all_named(tmp_path: Path) -> None:
    path = write(tmp_path, "[model]\nnum_layers = 4\n")
    found = refusal(path)
    assert {"model.hidden_size", "training.steps", "training.global_batch_size"} < set(found)
    assert found["training.steps"].message == f"required, and not set in {path}"


def test_a_required_key_that_is_only_misspelt_is_reported_once(tmp_path: Path) -> None:
    found = refusal(write(tmp_path, edited("hidden_size = 64\n", "hidden_dim = 64\n")))
    assert list(found) == ["model.hidden_dim"]
    assert found["model.hidden_dim"].remedy == "did you mean model.hidden_size?"


def test_what_only_follows_from_a_misspelt_key_is_not_reported_too(tmp_path: Path) -> None:
    found = refusal(write(tmp_path, edited("block_size = 2\n", "blok_size = 2\n")))
    assert list(found) == ["residual.blok_size"]


def test_rules_are_not_held_against_a_default_that_stands_in_for_an_unreadable_value(tmp_path: Path) -> None:
    found = refusal(write(tmp_path, SMALL + "[parallel]\nvirtual = 2\npipeline = 2 ranks\n"))
    assert list(found) == ["parallel.pipeline"]


def test_a_misspelt_section_is_reported_once_and_its_keys_are_still_looked_at(tmp_path: Path) -> None:
    text = edited("[training]\n", "[trainig]\n") + "micro_batch = 1\n"
    found = refusal(write(tmp_path, text))
    assert found["trainig"].remedy == "did you mean [training]?"
    assert list(found) == ["trainig", "trainig.micro_batch"]


def test_a_section_that_is_a_value_is_refused(tmp_path: Path) -> None:
    (problem,) = refusal(write(tmp_path, "optimizer = 3\n" + SMALL)).values()
    assert problem.key == "optimizer" and "3 is not a section" in problem.message


def test_rules_between_keys_are_reported_along_with_unknown_keys_and_with_their_lines(tmp_path: Path) -> None:
    path = write(tmp_path, edited("micro_batch_size = 2", "micro_batch_size = 3") + "warmup = 1\n")
    found = refusal(path)
    assert set(found) == {"training.warmup", "training.global_batch_size"}
    assert found["training.global_batch_size"].message.endswith(f"({path}:15)")


def test_a_file_that_is_not_there_is_refused_with_its_absolute_path(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = refusal(Path("absent.toml"), ["--lr=3"])
    assert f"there is no file {tmp_path / 'absent.toml'}" in found["absent.toml"].message
    assert "--lr" in found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "sets nothing"),
        (b"\n# only a comment\n", "sets nothing"),
        (b"[model]\nname = '\xff'\n", "not UTF-8: byte 0xff at offset 16"),
    ],
)
def test_a_file_without_settings_or_not_text_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    (problem,) = refusal(path).values()
    assert message in problem.message


def test_a_byte_that_is_not_utf8_is_placed_by_line(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"[model]\nname = '\xff'\n")
    assert list(refusal(path)) == [f"{path}:2"]


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (problem,) = refusal(tmp_path).values()
    assert "is a folder" in problem.message


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert load(path).origins["model.hidden_size"] == f"{path}:3"


def test_none_as_text_is_none_for_keys_that_may_be_none(tmp_path: Path) -> None:
    config = load(write(tmp_path), flags(optimizer__clip_grad_norm="none", checkpoint__keep="none")).config
    assert config.optimizer.clip_grad_norm is None and config.checkpoint.keep is None


def test_a_blend_keeps_prefixes_with_dots_and_slashes(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL + '[data.train]\n"corpora/a.v1" = 3\nb = 0.5\n')
    loaded = load(path)
    assert loaded.config.data.train == {"corpora/a.v1": 3.0, "b": 0.5}
    assert loaded.origins["data.train"] == f"{path}:19"


def test_training_needs_data_but_a_plan_does_not(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert load_checked(path, purpose="plan").config == load_checked(path, purpose="check").config
    with pytest.raises(Refused) as caught:
        load_checked(path, purpose="train")
    assert [problem.key for problem in caught.value.problems] == ["data.train"]
