"""The pages of plans and advice: as wide as they promise, and like stages on one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnres_train.config.check import check
from attnres_train.config.load import load
from attnres_train.plan import plan
from attnres_train.plan.advice_text import advice_text
from attnres_train.plan.advise import advise
from attnres_train.plan.devices import devices
from attnres_train.plan.page import PAGE_COLUMNS
from attnres_train.plan.speeds import machine_of
from attnres_train.plan.text import plan_text
from tests.unit.config_files import flags

CONFIGS = Path(__file__).parents[2] / "configs"
MI300X = machine_of(devices()["mi300x"], "bf16")  # whose assumptions are the longest


def run_configs() -> list[Path]:
    """Those of `configs/` that describe one run; the plan of an ablation describes several."""
    return [path for path in sorted(CONFIGS.rglob("*.toml")) if "\n[model]\n" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", run_configs(), ids=lambda path: path.stem)
def test_no_line_of_a_plan_is_wider_than_the_page(path: Path) -> None:
    left_open = flags(tokenizer__vocab_size=50_257, residual__block_size=4)  # by the reference of all keys
    config = load(path, left_open if path.stem == "reference" else ()).config
    worlds = [world for world in (1, 2, 6, 8, 64, 96, 1024) if not check(config, world)]
    assert worlds
    for world in worlds:
        for machine in (None, MI300X):
            text = plan_text(plan(config, world, config.tokenizer.vocab_size or 50_257, machine), path.name)
            assert max(map(len, text.splitlines())) <= PAGE_COLUMNS


@pytest.mark.parametrize("world", [1, 7, 24])
@pytest.mark.parametrize("path", sorted(CONFIGS.glob("published/*.toml")), ids=lambda path: path.stem)
def test_no_line_of_advice_is_wider_than_the_page_and_no_reason_is_cut(path: Path, world: int) -> None:
    found = advise(load(path).config, world, MI300X)
    text = advice_text(found, path.name)
    assert max(map(len, text.splitlines())) <= PAGE_COLUMNS
    words = " ".join(text.split())
    assert all(" ".join(refusal.words.split()[-4:]) in words for refusal in found.refused)


def test_stages_that_are_alike_share_a_line_and_all_are_named() -> None:
    overrides = flags(residual__mode="standard", residual__block_size="none")
    lines = plan_text(plan(load(CONFIGS / "published/llama-70b-block.toml", overrides).config), "x").splitlines()
    rows = [line.split() for line in lines[lines.index(next(line for line in lines if "chunk" in line)) + 1 :]]
    assert [row[0] for row in rows] == ["0", "1-3", "4-7", "8-11", "12-15", "16-18", "19"]
    assert rows[1][1:6] == ["1-3", "0", "4", "(4-15)", "each"]


def test_depth_adds_two_vectors_a_reader_to_the_published_parameter_counts() -> None:
    """Llama 3 8B: 64 sublayers and the head read, each with a query and a gain of 4,096."""
    assert plan(load(CONFIGS / "published/llama-8b-block.toml").config).parameters_total == 8_030_261_248 + 65 * 8192
    padded = plan(load(CONFIGS / "published/llama-70b-block.toml").config)
    rows = 2 * (padded.setup.padded_vocabulary - padded.setup.vocabulary) * 8192
    assert padded.parameters_total == 70_553_706_496 + 161 * 2 * 8192 + rows
