"""A small valid configuration, as a file and as an object, for the tests of configuration and plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from attnres_train.config.check import check
from attnres_train.config.load import load, load_checked
from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem, Refused

SMALL = dedent("""\
    [model]
    num_layers = 4
    hidden_size = 64
    ffn_hidden_size = 128
    num_attention_heads = 4

    [residual]
    mode = "block"
    block_size = 2

    [tokenizer]
    vocab_size = 320

    [training]
    global_batch_size = 8
    micro_batch_size = 2
    sequence_length = 32
    steps = 20
    """)


def write(folder: Path, text: str = SMALL, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def flags(**values: object) -> list[str]:
    """`flags(model__num_layers=7)` is `["--model.num_layers=7"]`."""
    return [f"--{name.replace('__', '.')}={value}" for name, value in values.items()]


def small(tmp_path: Path, *overrides: str) -> RunConfig:
    """The small configuration with overrides, types checked, rules not."""
    return load(write(tmp_path), overrides).config


def refusal(path: Path, overrides: Sequence[str] = (), world_size: int | None = None) -> dict[str, Problem]:
    """The problems that `load_checked` refuses with, by key; every key at most once."""
    with pytest.raises(Refused) as caught:
        load_checked(path, overrides, world_size, "plan")
    problems = {problem.key: problem for problem in caught.value.problems}
    assert len(problems) == len(caught.value.problems), "a key was reported twice"
    return problems


def broken_rules(tmp_path: Path, *overrides: str, world_size: int | None = None) -> dict[str, Problem]:
    """What `check` says of the small configuration with overrides, by key."""
    return {problem.key: problem for problem in check(small(tmp_path, *overrides), world_size)}
