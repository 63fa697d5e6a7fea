"""Advice on layouts, and the picture of one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from attnres_train.cli import main
from attnres_train.config.load import load, load_checked
from attnres_train.plan import plan
from attnres_train.plan.advice_text import advice_json, advice_text
from attnres_train.plan.advise import Advice, advise
from attnres_train.plan.devices import DEVICES
from attnres_train.plan.speeds import machine_of
from tests.unit.config_files import flags, write

PUBLISHED = Path(__file__).parents[2] / "configs/published"
H100 = machine_of(DEVICES["h100-sxm"], "bf16")


@pytest.fixture(scope="module")
def llama() -> Advice:
    return advise(load(PUBLISHED / "llama-8b-block.toml").config, 64, H100)


def test_the_overrides_of_a_choice_give_its_plan(llama: Advice) -> None:
    for choice in llama.choices:
        path = PUBLISHED / "llama-8b-block.toml"
        planned = plan(load_checked(path, choice.overrides.split(), 64, "plan").config, 64, machine=H100)
        assert planned.time is not None and planned.fits
        assert planned.time.step_seconds == pytest.approx(choice.time.step_seconds)
        assert planned.memory == choice.memory
        assert planned.wire.step_forward_bytes + planned.wire.step_backward_bytes == choice.wire_bytes


def test_the_fastest_comes_first_and_beats_the_layout_of_the_file(llama: Advice) -> None:
    rates = [choice.time.tokens_per_second for choice in llama.choices]
    assert len(rates) == 5 and rates == sorted(rates, reverse=True)
    own = plan(load(PUBLISHED / "llama-8b-block.toml").config, 64, machine=H100)
    assert own.time is not None and rates[0] >= own.time.tokens_per_second


def test_every_refusal_has_its_reason_and_numbers() -> None:
    # 12 heads: 8 tensor ranks cannot share them.
    changes = flags(model__num_attention_heads=12, model__hidden_size=1536, training__global_batch_size=24)
    config = load(PUBLISHED / "kimi-linear-48b-like.toml", changes).config
    found = advise(config, 8, machine_of(DEVICES["h100-sxm"], "bf16"))
    words = " ".join(refusal.words for refusal in found.refused)
    assert "no multiples of parallel.tensor = 8" in words
    assert "fewer than parallel.pipeline" in words
    assert "nearest" not in words and sum(refusal.number for refusal in found.refused) < found.tried


def test_what_is_too_large_for_the_devices_is_refused_with_gibibytes() -> None:
    found = advise(load(PUBLISHED / "llama-70b-block.toml").config, 8, H100)
    assert found.choices == () and found.runnable == 0
    assert any("of 71.1 GiB" in refusal.words for refusal in found.refused)
    assert "none" in advice_text(found, "title")


def test_1024_devices_are_advised_in_three_seconds() -> None:
    config = load(PUBLISHED / "k3-like.toml").config
    started = time.process_time()
    found = advise(config, 1024, H100)
    assert time.process_time() - started < 6, "3 on a machine that nobody else uses"
    assert found.tried > 1000 and found.choices
    assert json.loads(json.dumps(advice_json(found)))["layouts"][0]["overrides"] == found.choices[0].overrides


@pytest.mark.parametrize("arguments", [["--advise"], ["--advise", "--device", "h200"], ["--draw", "x.png"]], ids=str)
def test_what_goes_with_a_device_is_refused_without(tmp_path: Path, arguments: list[str], capsys: Any) -> None:
    assert main(["plan", str(write(tmp_path)), *arguments]) == 2
    assert "write --world N" in (said := capsys.readouterr().err) or "--device" in said


def test_advice_does_not_ask_for_a_sound_layout_in_the_file(tmp_path: Path, capsys: Any) -> None:
    command = ["plan", str(write(tmp_path)), "--world", "8", "--device", "h100-sxm", "--advise", "--json"]
    assert main([*command, "--parallel.pipeline", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["world"] == 8 and found["layouts"] and found["refused"]


def test_a_picture_of_the_schedule(tmp_path: Path) -> None:
    picture = tmp_path / "schedule.png"
    overrides = ["--parallel.pipeline", "2", "--parallel.virtual", "2", "--device", "h200", "--draw", str(picture)]
    assert main(["plan", str(write(tmp_path)), *overrides]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 20_000
