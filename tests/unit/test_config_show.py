"""A configuration as text, and back."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres_train.config.keys import all_keys
from attnres_train.config.load import load
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import reference_toml, resolved_toml, toml_value
from tests.unit.config_files import flags, write

REPOSITORY = Path(__file__).parents[2]


def reloaded(folder: Path, config: RunConfig, origins: Any) -> RunConfig:
    return load(write(folder, resolved_toml(config, origins), "config.toml")).config


def test_the_resolved_file_says_where_every_value_came_from(tmp_path: Path) -> None:
    path = write(tmp_path)
    loaded = load(path, flags(training__steps=30))
    lines = resolved_toml(loaded.config, loaded.origins).split("\n")
    rows = {line.partition(" = ")[0]: line.split("  # ")[-1] for line in lines if " = " in line}
    assert rows["hidden_size"] == f"{path}:3"
    assert rows["steps"] == "command line"
    assert rows["seed"] == "default"
    assert rows["# num_query_groups"] == "default"
    assert len(rows) == len({key.name for key in all_keys().values()})


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        flags(optimizer__clip_grad_norm="none", checkpoint__keep="none", model__num_query_groups=2),
        flags(data__train='{"corpora/a b.v1" = 0.25, c = 3}', data__valid="corpora/valid"),
        flags(parallel__layers_per_stage="[3, 1]", parallel__pipeline=2, optimizer__learning_rate="1e-05"),
        flags(training__run_folder='a "quoted" \\ folder \u00e9 \U0001f600 \x7f'),
        flags(optimizer__eps="1e-300", schedule__min_learning_rate=0, parallel__sequence="true"),
    ],
)
def test_the_resolved_file_loads_again_to_an_equal_configuration(tmp_path: Path, overrides: list[str]) -> None:
    loaded = load(write(tmp_path), overrides)
    assert reloaded(tmp_path, loaded.config, loaded.origins) == loaded.config


def test_the_resolved_file_of_a_resolved_file_holds_the_same_values(tmp_path: Path) -> None:
    first = load(write(tmp_path), flags(checkpoint__keep="none"))
    second = load(write(tmp_path, resolved_toml(first.config, first.origins), "config.toml"))
    assert reloaded(tmp_path, second.config, second.origins) == first.config


def test_a_file_name_with_a_line_end_does_not_break_the_comment(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, name="odd\nname = 3.toml"))
    assert reloaded(tmp_path, loaded.config, loaded.origins) == loaded.config


values = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(values)
def test_any_value_written_as_toml_reads_back_equal(value: Any) -> None:
    assert tomllib.loads(f"x = {toml_value(value)}")["x"] == value


def test_the_reference_is_up_to_date() -> None:
    """If not: `python -m attnres_train.config.show > configs/reference.toml`."""
    assert (REPOSITORY / "configs/reference.toml").read_text(encoding="utf-8") == reference_toml()


def test_the_reference_shows_every_key_with_its_default_and_loads(tmp_path: Path) -> None:
    config = load(write(tmp_path, reference_toml())).config
    for section, cls in ((name, type(getattr(config, name))) for name in vars(config)):
        required = {
            name: getattr(getattr(config, section), name)
            for name, field in cls.__pydantic_fields__.items()
            if field.is_required()
        }
        assert getattr(config, section) == cls(**required), section
    text = reference_toml()
    for key in all_keys().values():
        assert f"\n{key.name} = " in text or f'\n# {key.name} = "none"' in text
