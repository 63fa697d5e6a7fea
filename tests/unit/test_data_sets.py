"""Names of sources and of validation sets, what a table under `data.valid` means, and the curves it gives."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from attnres_train.data.config import source_names, validation_sets
from attnres_train.observe.metrics import validation_metrics
from attnres_train.observe.tags import describe_tag
from attnres_train.progress import LossSum
from tests.unit.config_files import broken_rules, flags, small


@pytest.mark.parametrize(
    ("train", "names"),
    [
        (None, {}),
        ("corpora/en", {}),
        ({"a": 1.0, "b": 0.0}, {}),
        ({"corpora/en/train": 1.0, "unused": 0.0, "corpora/de/train": 1.0}, {0: "en", 2: "de"}),
        ({"/data/web": 1.0, "/data/books/one": 1.0}, {0: "web", 1: "books/one"}),
        ({"../a": 1.0, "b/a": 1.0}, {0: "..", 1: "b"}),
        ({"x/a": 1.0, "x//a": 1.0}, {0: "x/a", 1: "x//a"}),
    ],
)
def test_sources_are_named_by_where_their_prefixes_differ(train: Any, names: dict[int, str]) -> None:
    assert source_names(train) == names


@pytest.mark.parametrize(
    ("written", "sets"),
    [
        ('"v"', {"": {"v": 1.0}}),
        ("{v = 3, w = 1}", {"": {"v": 3.0, "w": 1.0}}),
        ('{web = "v", books = "w"}', {"web": {"v": 1.0}, "books": {"w": 1.0}}),
        ('{web = {v = 3, w = 1}, books = "w"}', {"web": {"v": 3.0, "w": 1.0}, "books": {"w": 1.0}}),
    ],
)
def test_numbers_are_weights_of_one_blend_and_anything_else_names_sets(
    written: str, sets: dict[str, Any], tmp_path: Path
) -> None:
    assert validation_sets(small(tmp_path, *flags(data__valid=written)).data.valid) == sets


def test_a_name_that_would_break_its_tag_and_weights_of_a_set_are_refused(tmp_path: Path) -> None:
    found = broken_rules(tmp_path, *flags(data__train="t", data__valid='{"a/b" = "v", c = {v = -1}}'))
    assert found["data.valid"].message == "'a/b' is no name for a set: it is part of its curve's tag"
    assert found["data.valid.c"].message == "negative weight: v = -1"
    found = broken_rules(tmp_path, *flags(data__train="t", data__valid='{"" = "v"}'))
    assert found["data.valid"].message.startswith("'' is no name for a set")
    assert "data.valid" not in broken_rules(tmp_path, *flags(data__train="t", data__valid='{"v/w" = 1}'))


def test_the_loss_of_all_sets_is_the_mean_over_their_tokens() -> None:
    losses = {"web": LossSum(30.0, 10), "books": LossSum(10.0, 10), "one": LossSum(4.0, 4)}
    values = validation_metrics(losses, {"web": 0.25, "books": 0.5, "one": 0.5})
    assert values["loss/valid"] == 44 / 24
    assert [values[f"loss/valid/{name}"] for name in losses] == [3.0, 1.0, 1.0]
    assert values["loss/valid_bits_per_byte"] == pytest.approx(44 / math.log(2) / (40 + 20 + 8))
    assert values["loss/valid_bits_per_byte/web"] == pytest.approx(3 / math.log(2) * 0.25)
    assert all(describe_tag(tag) for tag in (*values, "loss/train/en"))
    assert validation_metrics({"": LossSum(6.0, 3)}, {"": None}) == {"loss/valid": 2.0}
    unknown = validation_metrics(losses, {"web": None, "books": 0.5, "one": 0.5})
    assert "loss/valid_bits_per_byte" not in unknown and "loss/valid_bits_per_byte/books" in unknown
