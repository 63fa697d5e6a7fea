"""Advice on layouts, and the picture of one."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnres_train.cli import main
from attnres_train.config.load import load, load_checked
from attnres_train.config.run_config import RunConfig
from attnres_train.plan import plan
from attnres_train.plan.advice_text import advice_json, advice_text
from attnres_train.plan.advise import Advice, advise
from attnres_train.plan.devices import devices
from attnres_train.plan.layouts import families
from attnres_train.plan.speeds import Machine, machine_of
from attnres_train.plan.timing import Timing
from attnres_train.setup import Setup
from tests.pace import slowdown
from tests.unit.config_files import SMALL, flags, write

PUBLISHED = Path(__file__).parents[2] / "configs/published"
H100 = machine_of(devices()["h100-sxm"], "bf16")


@pytest.fixture(scope="module")
def llama() -> Advice:
    return advise(load(PUBLISHED / "llama-8b-block.toml").config, 64, H100)


def test_the_overrides_of_a_choice_give_its_plan(llama: Advice) -> None:
    for choice in llama.choices:
        path = PUBLISHED / "llama-8b-block.toml"
        planned = plan(load_checked(path, choice.overrides.split(), 64, "plan").config, 64, machine=H100)
        assert planned.time is not None and planned.fits
        assert planned.time.step_seconds == pytest.approx(choice.plan.step_seconds)
        assert planned.memory == choice.plan.memory
        assert planned.wire == choice.plan.wire


def test_the_fastest_comes_first_and_beats_the_layout_of_the_file(llama: Advice) -> None:
    rates = [choice.plan.time.tokens_per_second for choice in llama.choices]
    assert len(rates) == 5 and rates == sorted(rates, reverse=True)
    own = plan(load(PUBLISHED / "llama-8b-block.toml").config, 64, machine=H100)
    assert own.time is not None and rates[0] >= own.time.tokens_per_second


def test_every_refusal_has_its_reason_and_numbers() -> None:
    # 12 heads: 8 tensor ranks cannot share them.
    changes = flags(model__num_attention_heads=12, model__hidden_size=1536, training__global_batch_size=24)
    config = load(PUBLISHED / "kimi-linear-48b-like.toml", changes).config
    found = advise(config, 8, machine_of(devices()["h100-sxm"], "bf16"))
    words = " ".join(refusal.words for refusal in found.refused)
    assert "no multiples of parallel.tensor = 8" in words
    assert "fewer than parallel.pipeline" in words
    assert "nearest" not in words and sum(refusal.number for refusal in found.refused) < found.tried
    assert found.tried == found.runnable + found.implied + sum(refusal.number for refusal in found.refused)
    assert found.implied > 0 and f"stand for {found.implied} that only make more again" in advice_text(found, "")


def test_what_is_too_large_for_the_devices_is_refused_with_gibibytes() -> None:
    found = advise(load(PUBLISHED / "llama-70b-block.toml").config, 8, H100)
    assert found.choices == () and found.runnable == 0
    alone = next(refusal for refusal in found.refused if "optimizer alone need" in refusal.words)
    # 70.6e9 weights in bf16 and their gradients in fp32 over 8 devices, two moments and masters over as many.
    assert "needs" not in alone.words and "71.1 GiB" in alone.words
    assert sum(refusal.number for refusal in found.refused) == found.tried
    assert "none" in advice_text(found, "title")


def test_1024_devices_are_advised_in_three_seconds() -> None:
    config = load(PUBLISHED / "k3-like.toml").config
    started = time.process_time()
    found = advise(config, 1024, H100)
    seconds = time.process_time() - started
    assert seconds < 3 * slowdown(), "of a processor; imports take a third of a second more"
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


SMALL_CASES = {
    "small on 8": (8, flags(model__num_layers=12, training__global_batch_size=32)),
    "fewer micro-batches than ranks": (12, flags(model__num_layers=7, training__global_batch_size=12)),
    "a wide head": (16, flags(model__num_layers=9, tokenizer__vocab_size=9000, training__global_batch_size=64)),
}


@pytest.mark.parametrize("name", SMALL_CASES)
def test_what_is_ruled_out_unplayed_would_not_have_been_among_the_fastest(tmp_path: Path, name: str) -> None:
    """Against every layout that can run, played one by one."""
    world, changes = SMALL_CASES[name]
    config = load(write(tmp_path), changes).config
    pruned, every = advise(config, world, H100, wanted=5), advise(config, world, H100, wanted=10_000)
    assert len(every.choices) == every.runnable > 5
    assert [c.plan.time for c in pruned.choices] == [c.plan.time for c in every.choices[:5]]
    assert [c.overrides for c in pruned.choices] == [c.overrides for c in every.choices[:5]]
    assert pruned.runnable == every.runnable and pruned.refused == every.refused
    assert every.implied == 3 * every.runnable, "all fit as they are, and would with each of three ways to keep less"
    layouts = [choice.layout for choice in every.choices]
    assert {(layout.tensor, layout.sequence) for layout in layouts} >= {(1, False), (2, True), (4, True)}
    assert all(layout.sequence == (layout.tensor > 1) for layout in layouts)
    assert {layout.data for layout in layouts if layout.zero} <= {*range(2, world + 1)}


def test_zero_is_for_several_replicas_and_sequence_shards_for_every_tensor_degree() -> None:
    tried = [layout for family in families(8, 8, 12) for layout in family]
    assert {layout.data for layout in tried if layout.zero} == {2, 4, 8}
    assert {layout.tensor for layout in tried if layout.sequence} == {2, 4, 8}
    assert all(layout.tensor == 1 for layout in tried if not layout.sequence)


def test_where_the_last_rank_is_too_full_a_leaner_way_is_tried(tmp_path: Path) -> None:
    """The head makes the last of two stages the fullest: a byte too much there, and more is made again."""
    changes = flags(model__num_layers=12, tokenizer__vocab_size=30_000, training__global_batch_size=16)
    config = load(write(tmp_path), changes).config

    def halves(machine: Machine) -> dict[int, str]:
        layouts = [choice.layout for choice in advise(config, 2, machine, wanted=10_000).choices]
        return {one.micro_batch_size: one.recompute for one in layouts if (one.pipeline, one.virtual) == (2, 1)}

    (choice,) = [
        one
        for one in advise(config, 2, H100, wanted=10_000).choices
        if (one.layout.pipeline, one.layout.virtual, one.layout.micro_batch_size) == (2, 1, 4)
    ]
    assert choice.layout.recompute == "none" and choice.plan.memory.rank == 1
    tight = replace(H100, memory_gib=(choice.plan.memory.total - 1) / (0.9 * 2**30))
    assert halves(H100)[4] == "none" and halves(tight)[4] != "none"
    assert halves(replace(tight, memory_gib=tight.memory_gib + 1e-6))[4] == "none"


@pytest.mark.parametrize("name", SMALL_CASES)
def test_no_step_is_shorter_than_its_bounds(tmp_path: Path, name: str) -> None:
    world, changes = SMALL_CASES[name]
    config = load(write(tmp_path), changes).config
    for choice in advise(config, world, H100, wanted=10_000).choices:
        made = load_checked(write(tmp_path), [*changes, *choice.overrides.split()], world, "plan").config
        timing = Timing(Setup.of(made, world), H100)
        any_split, this_split = timing.least_seconds_of_any_split(), timing.least_seconds()
        assert any_split <= choice.plan.step_seconds * (1 + 1e-9)
        assert this_split <= choice.plan.step_seconds * (1 + 1e-9)
        if choice.layout.pipeline == 1:
            assert this_split == pytest.approx(choice.plan.step_seconds), "one rank waits for nobody"


def test_a_run_of_deepspeed_is_advised_both_engines_and_how_to_ask_for_them(tmp_path: Path) -> None:
    """Without ZeRO a layout is megatron-core's, whatever the file says, and what only DeepSpeed reads is taken back."""
    engine = flags(engine__kind="deepspeed", engine__deepspeed__offload_optimizer="true")
    path = write(tmp_path)
    choices = advise(load(path, engine).config, 8, H100, wanted=10_000).choices
    assert {choice.layout.zero for choice in choices} == {0, 2, 3}
    assert {choice.layout.pipeline for choice in choices} > {1, 2}
    for choice in [next(c for c in choices if c.layout.zero == zero) for zero in (0, 2, 3)]:
        kept = [flag for flag in engine if flag.partition("=")[0] not in choice.overrides]
        planned = plan(load_checked(path, [*kept, *choice.overrides.split()], 8, "plan").config, 8, machine=H100)
        assert planned.memory == choice.plan.memory
        assert (planned.memory.host > 0) == (choice.layout.zero > 0)


@pytest.mark.parametrize(
    ("name", "more", "wanted"),
    [
        ("", [], "is a folder"),
        ("picture", [], "does not end in .png"),
        ("nowhere/x.png", [], "there is no folder"),
    ],
    ids=["folder", "no suffix", "no folder"],
)
def test_pictures_that_cannot_be_are_refused(
    tmp_path: Path, name: str, more: list[str], wanted: str, capsys: Any
) -> None:
    command = ["plan", str(write(tmp_path)), "--world", "2", "--device", "h200", "--draw", str(tmp_path / name), *more]
    assert main([*command, "--json"]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["key"] == "--draw" and wanted in problem["message"]
    assert [path.suffix for path in tmp_path.iterdir()] == [".toml"]


def test_every_row_of_advice_has_its_overrides_and_none_that_changes_nothing(tmp_path: Path, capsys: Any) -> None:
    """Each is needed: without it the layout, or the memory that it takes, is another."""
    text = SMALL.replace("num_layers = 4", "num_layers = 6") + 'recompute = "none"\n\n[parallel]\nbalance = "layers"\n'
    path, picture = write(tmp_path, text), tmp_path / "fastest.png"
    command = ["plan", str(path), "--world", "4", "--device", "h100-sxm", "--advise"]
    assert main([*command, "--draw", str(picture)]) == 0
    page = capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    config = load(path).config
    choices = advise(config, 4, H100).choices
    assert len(choices) == 5
    for number, choice in enumerate(choices, 1):
        assert f"  {number}:  {choice.overrides or 'as in the file'}" in page
        words = choice.overrides.split()
        whole = load(path, words).config
        assert len(words) % 2 == 0 and "balance" not in choice.overrides or choice.layout.pipeline > 1
        for first in range(0, len(words), 2):
            less = load(path, words[:first] + words[first + 2 :]).config
            assert _runs_as(less) != _runs_as(whole), f"{words[first]} changes nothing"


def _runs_as(config: RunConfig) -> RunConfig:
    """With the split that it comes to in the place of what it follows from."""
    split = Setup.of(config).layers_per_stage
    return replace(config, parallel=replace(config.parallel, balance="layers", layers_per_stage=split))
