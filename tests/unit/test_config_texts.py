"""Keys that take a text, and paths of commands: what was written is taken, `~` and `$NAME` as a shell has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnres_train.cli import main
from attnres_train.config.keys import all_keys
from attnres_train.config.load import load
from attnres_train.config.show import config_values, resolved_toml
from attnres_train.paths import expanded
from tests.unit.config_files import SMALL, flags, refusal, write

TEXTS = [key.dotted for key in all_keys().values() if key.takes_text]
HOME = {"HOME": "/home/me", "JOB": "4711", "EMPTY": ""}


def test_the_texts_are_known_as_such() -> None:
    assert set(TEXTS) >= {"tokenizer.model", "data.train", "training.run_folder", "checkpoint.resume"}


@pytest.mark.parametrize("dotted", TEXTS)
@pytest.mark.parametrize("text", ["4711", "1_1_1", "0x10", "007", "1e3", "true", "nan", "2026-11-29", "a b", "'-x"])
def test_a_text_key_takes_what_was_written(tmp_path: Path, dotted: str, text: str) -> None:
    """facebookresearch/hydra#1163: a job's number is the name of its folder."""
    config = load(write(tmp_path), [f"--{dotted}", text]).config
    assert config_values(config, [dotted])[dotted] == text
    quoted = load(write(tmp_path), [f'--{dotted}="{text}"']).config
    assert config_values(quoted, [dotted])[dotted] == text


@pytest.mark.parametrize("dotted", TEXTS)
@pytest.mark.parametrize("text", ["", "  ", '""'])
def test_no_text_is_refused_for_every_text_key(tmp_path: Path, dotted: str, text: str) -> None:
    (problem,) = refusal(write(tmp_path), [f"--{dotted}={text}"]).values()
    assert problem.key == dotted and problem.message.endswith("is empty (command line)")


@pytest.mark.parametrize(("written", "shown"), [("4711", "4711"), ("1_1", "11"), ("2026-11-29", "2026-11-29")])
def test_a_file_quotes_its_texts(tmp_path: Path, written: str, shown: str) -> None:
    path = write(tmp_path, SMALL + f"run_folder = {written}\n")
    (problem,) = refusal(path).values()
    line = SMALL.count("\n") + 1
    assert problem.message == f'{shown} is not a text, or "none" ({path}:{line})'
    assert problem.remedy == "a text stands in double quotes"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("~/runs", "/home/me/runs"),
        ("~", "/home/me"),
        ("runs/$JOB", "runs/4711"),
        ("${JOB}th/$JOB", "4711th/4711"),
        ("a~b/~", "a~b/~"),
        ("./~", "./~"),
        ("cost $5", "cost $5"),
        ("", ValueError("is empty")),
        (" ", ValueError("is empty")),
        ("runs/a\0b", ValueError("holds the control character '\\x00'")),
        ("runs/a\nb", ValueError("holds the control character '\\n'")),
        ("runs/" + 128 * "ü", ValueError("holds a name of more than 255 bytes, the most that a file can have")),
        ("/".join(["x" * 255] * 3), "/".join(["x" * 255] * 3)),
        ("$NOT_THERE/runs", ValueError("names the environment variable 'NOT_THERE', which is not set here")),
        ("runs/${EMPTY}", ValueError("names the environment variable 'EMPTY', which is empty here")),
        ("${oc.env:JOB}", ValueError("names the environment variable 'oc.env:JOB', which is not set here")),
        ("~nobody-is-called-so/x", ValueError("begins with ~nobody-is-called-so, and there is no such user")),
    ],
)
def test_homes_and_variables_are_expanded_or_refused(
    monkeypatch: pytest.MonkeyPatch, text: str, meant: str | ValueError
) -> None:
    """ARISE-Initiative/robomimic#36: a folder that is called ~."""
    monkeypatch.setenv("HOME", "/home/me")
    if isinstance(meant, str):
        assert expanded(text, HOME) == meant
    else:
        with pytest.raises(ValueError) as caught:
            expanded(text, HOME)
        assert str(meant) in str(caught.value)


def test_texts_of_a_file_and_of_a_blend_are_expanded_and_stay_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORPORA", "/data")
    path = write(tmp_path, SMALL + '\n[data]\ntrain = {"$CORPORA/a" = 1, b = 2}\nvalid = "${CORPORA}/v"\n')
    loaded = load(path)
    assert loaded.config.data.train == {"/data/a": 1.0, "b": 2.0} and loaded.config.data.valid == "/data/v"
    resolved = write(tmp_path, resolved_toml(loaded.config, loaded.origins), "config.toml")
    monkeypatch.delenv("CORPORA")
    assert load(resolved).config == loaded.config
    assert refusal(path).keys() == {"data.train", "data.valid"}
    monkeypatch.setenv("CORPORA", "b")
    twice = refusal(write(tmp_path), flags(data__train='{"$CORPORA" = 1, b = 2}'))
    assert twice["data.train"].message.endswith("names the same path twice (command line)")


@pytest.mark.parametrize(
    "command",
    [
        "check {}",
        "plan {}",
        "plan RUN --device h100-sxm --draw {}",
        "inspect {}",
        "verify {}",
        "report {}",
        "report RUN --output {}",
        "ablate {}",
        "doctor {}",
        "doctor RUN --device-file {}",
        "hostfile {}",
        "import {} RUN",
        "import RUN {}",
        "merge {} OUT",
        "merge RUN {}",
    ],
)
def test_no_command_takes_an_empty_path_or_a_variable_that_is_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = str(write(tmp_path))
    for text, words in (("", "'' is empty"), ("$NOT_THERE/x", "'NOT_THERE', which is not set here")):
        assert main([word.format(text).replace("RUN", run) for word in command.split()]) == 2
        assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


@pytest.mark.parametrize("text", ["none", "None", "null", "NULL"])
def test_no_folder_is_called_none_however_it_is_spelt(tmp_path: Path, text: str) -> None:
    """ashleve/lightning-hydra-template#629 and hechoendrupal/drupal-console#2062: a null that became a text."""
    may_be_none = [key.dotted for key in all_keys().values() if key.may_be_none]
    config = load(write(tmp_path), [f"--{dotted}={text}" for dotted in may_be_none]).config
    assert set(config_values(config, may_be_none).values()) == {None}
    assert load(write(tmp_path), ["--training.run_folder=./none"]).config.training.run_folder == "./none"
