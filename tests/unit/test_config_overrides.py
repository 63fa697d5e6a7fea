"""Command-line overrides."""

from __future__ import annotations

from typing import Any

import pytest

from attnres_train.config.keys import all_keys
from attnres_train.config.overrides import override_value, parse_overrides, separate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1_000", 1000),
        ("3e-4", 3e-4),
        ("-1", -1),
        ("true", True),
        ("True", "True"),
        ("[3, 5]", [3, 5]),
        ('{"a/b" = 0.5}', {"a/b": 0.5}),
        ('"quoted"', "quoted"),
        ("corpora/books", "corpora/books"),
        ("a = b", "a = b"),
        ("1\nother = 2", "1\nother = 2"),
        ("2026-11-29", "2026-11-29"),
        ("", ""),
    ],
)
def test_a_value_is_read_as_toml_else_as_the_text_it_is(text: str, value: Any) -> None:
    read = override_value(text)
    assert (read, type(read)) == (value, type(value))


def test_both_spellings_of_a_flag_mean_the_same() -> None:
    known = all_keys()
    apart = parse_overrides(["--training.steps", "3", "--optimizer.learning_rate", "1e-3"], known)
    joined = parse_overrides(["--training.steps=3", "--optimizer.learning_rate=1e-3"], known)
    assert apart == joined
    assert apart.values == {"training.steps": 3, "optimizer.learning_rate": 1e-3}


def test_a_negative_number_is_a_value_and_a_flag_is_not() -> None:
    parsed = parse_overrides(["--model.num_layers", "-1", "--parallel.sequence", "--training.steps", "2"], all_keys())
    assert parsed.values == {"model.num_layers": -1, "training.steps": 2}
    (problem,) = parsed.problems
    assert (problem.key, problem.message) == ("--parallel.sequence", "has no value (command line)")


def test_an_equals_sign_in_the_value_stays_there() -> None:
    assert parse_overrides(["--data.train={a = 1}"], all_keys()).values == {"data.train": {"a": 1}}


@pytest.mark.parametrize(
    ("arguments", "key", "remedy"),
    [
        (["--training.step", "3"], "--training.step", "did you mean --training.steps?"),
        (["--lr", "3"], "--lr", "did you mean --optimizer.learning_rate?"),
        (["--steps", "3"], "--steps", "did you mean --training.steps?"),
        (["--zzzzqq", "3"], "--zzzzqq", "`configs/reference.toml` lists every key"),
        (["stray"], "command line", "write overrides as --section.key value"),
        (["training.steps=30"], "command line", "write overrides as --training.steps value"),
        (["--training.steps=3", "--training.steps=4"], "--training.steps", "keep one of the two"),
    ],
)
def test_a_flag_that_cannot_be_taken_is_a_problem_with_a_remedy(arguments: list[str], key: str, remedy: str) -> None:
    (problem,) = parse_overrides(arguments, all_keys()).problems
    assert (problem.key, problem.remedy) == (key, remedy)


def test_all_flags_are_looked_at_after_a_bad_one() -> None:
    parsed = parse_overrides(["--lr", "3", "--stepps=4", "--training.steps", "5"], all_keys())
    assert [problem.key for problem in parsed.problems] == ["--lr", "--stepps"]
    assert parsed.values == {"training.steps": 5}


@pytest.mark.parametrize(
    ("line", "own", "overrides"),
    [
        ("run.toml --world 4 --a.b 3", ["run.toml", "--world", "4"], ["--a.b", "3"]),
        ("--a.b 3 run.toml", ["run.toml"], ["--a.b", "3"]),
        ("--a.b=3 run.toml --json", ["run.toml", "--json"], ["--a.b=3"]),
        ("--a.b run.toml", [], ["--a.b", "run.toml"]),
        ("--typo run.toml", ["run.toml"], ["--typo"]),
        ("run.toml a.b=3 --json", ["run.toml", "--json"], ["a.b=3"]),
        ("lr=1.5.toml x=y", ["lr=1.5.toml", "x=y"], []),
        ("run.toml --typo 3 -h", ["run.toml", "-h"], ["--typo", "3"]),
        ("run.toml --world=4 --a.b --c.d 1", ["run.toml", "--world=4"], ["--a.b", "--c.d", "1"]),
    ],
)
def test_a_command_line_is_split_into_own_flags_and_overrides(line: str, own: list[str], overrides: list[str]) -> None:
    assert separate(line.split(), ("--world", "--json")) == (own, overrides)
