"""Hugging Face folders that must not be imported, each refused by name before anything is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnres_train.errors import Refused
from attnres_train.exchange.hf_read_config import read_config
from tests.unit.hf_folders import (
    CONFIG,
    INDEX,
    SINGLE,
    edit_json,
    edit_tensors,
    refused,
    write_folder,
    write_sharded,
    write_toml,
)

SHARD = "model-00001-of-00002.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n"
_Q = "model.layers.0.self_attn.q_proj.weight"


def _config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "config.json", lambda content: content.update(changes))


def _without(*keys: str) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "config.json", lambda content: [content.pop(key) for key in keys])


def _tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    return lambda folder: edit_tensors(folder, change)


def _bytes(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes())) and None


def _index(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / INDEX, lambda content: change(content["weight_map"]))


def _weights_become(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / SINGLE).rename(folder / name) and None


ROPE = {"rope_type": "yarn", "rope_theta": 10000.0}
WRONG: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), ("config.json", "is missing")),
    "config cut short": (_bytes("config.json", lambda data: data[:-9]), ("config.json", "is no JSON")),
    "config a list": (_bytes("config.json", lambda _: b"[]"), ("config.json", "a list, not an object")),
    "config says a key twice": (
        _bytes("config.json", lambda data: data[:-1] + b', "hidden_size": 8}'),
        ("hidden_size", "there twice"),
    ),
    "config is a pointer": (_bytes("config.json", lambda _: POINTER), ("config.json", "Git LFS", "git lfs pull")),
    "another family": (_config(model_type="gpt2"), ("model_type", "gpt2", "mistral")),
    "no family": (_without("model_type"), ("model_type", "is not there")),
    "code of its own": (_config(auto_map={"AutoModel": "evil.Model"}), ("auto_map", "code of its own")),
    "quantized": (_config(quantization_config={"bits": 4}), ("quantization_config", "quantized")),
    "another activation": (_config(hidden_act="gelu"), ("hidden_act", "gelu")),
    "biases of the MLP": (_config(mlp_bias=True), ("mlp_bias", "no biases")),
    "no size": (_without("hidden_size"), ("hidden_size", "is not there")),
    "size a text": (_config(num_hidden_layers="2"), ("num_hidden_layers", "'2'")),
    "size true": (_config(num_hidden_layers=True), ("num_hidden_layers", "True")),
    "groups that do not divide": (_config(num_key_value_heads=3), ("num_key_value_heads", "3 does not divide")),
    "an odd head": (_config(head_dim=5), ("head_dim", "even")),
    "unknown positions": (_config(rope_scaling={"type": "longrope", "factor": 2.0}), ("rope_type", "longrope")),
    "dynamic positions": (_config(rope_scaling={"type": "dynamic", "factor": 2.0}), ("rope_type", "dynamic")),
    "yarn of no factor": (_config(rope_parameters=ROPE), ("rope_parameters.factor", "is not there")),
    "a factor that is a text": (_config(rope_parameters={**ROPE, "factor": "4"}), ("rope_parameters.factor", "'4'")),
    "two bases": (_config(rope_parameters={"rope_theta": 5e5}), ("rope_theta", "twice")),
    "a share of a head": (_config(partial_rotary_factor=0.5), ("partial_rotary_factor", "0.5")),
    "positions by kind of layer": (_config(rope_parameters={"full_attention": ROPE}), ("rope_parameters", "kind")),
    "no weights": (lambda folder: (folder / SINGLE).unlink(), (SINGLE, "is missing", INDEX)),
    "a pickle": (_weights_become("pytorch_model.bin"), ("pytorch_model.bin", "a pickle", "save_pretrained")),
    "another name": (_weights_become("consolidated.safetensors"), (SINGLE, "consolidated.safetensors is there")),
    "a pointer": (_bytes(SINGLE, lambda _: POINTER), (SINGLE, "Git LFS")),
    "cut short": (_bytes(SINGLE, lambda data: data[:-8]), (SINGLE, "damaged")),
    "longer": (_bytes(SINGLE, lambda data: data + bytes(8)), (SINGLE, "damaged")),
    "head of noise": (_bytes(SINGLE, lambda data: data[:8] + b"?" * 64 + data[72:]), (SINGLE, "damaged")),
    "empty": (_bytes(SINGLE, lambda _: b""), (SINGLE, "damaged")),
    "a tensor is missing": (_tensors(lambda t: t.pop(_Q)), (_Q, "no file has it")),
    "a tensor too many": (
        _tensors(lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(16)})),
        ("q_proj.bias", "does not ask for it"),
    ),
    "another shape": (_tensors(lambda t: t.update({_Q: torch.zeros(8, 16)})), (_Q, "(8, 16)", "(16, 16)")),
    "whole numbers": (_tensors(lambda t: t.update({_Q: torch.zeros(16, 16, dtype=torch.int8)})), (_Q, "I8")),
    "not finite": (_tensors(lambda t: t.update({_Q: torch.full((16, 16), float("nan"))})), (_Q, "not finite")),
    "untied by the flag alone": (_tensors(lambda t: t.pop("lm_head.weight")), ("lm_head.weight", "random numbers")),
    "fewer rows than the tokenizer": (
        lambda folder: (
            _config(vocab_size=30)(folder),
            edit_tensors(folder, lambda t: t.update({n: t[n][:30] for n in t if len(t[n]) == 40})),
        )[0],
        ("tokenizer.model", "has 40 entries", "30 rows"),
    ),
}
WRONG_SHARDED: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "a shard is missing": (lambda folder: (folder / SHARD).unlink(), (SHARD, "is missing", INDEX)),
    "the index names what is not there": (
        _index(lambda where: where.update({"model.nothing.weight": SHARD})),
        (SHARD, "has no model.nothing.weight"),
    ),
    "the index forgets a tensor": (_index(lambda where: where.pop(_Q)), (_Q, "knows nothing")),
    "the index leads out": (
        _index(lambda where: where.update({_Q: "../elsewhere.safetensors"})),
        ("../elsewhere.safetensors", "no file of safetensors beside it"),
    ),
    "the index names a pickle": (_index(lambda where: where.update({_Q: "model.bin"})), ("model.bin", "safetensors")),
    "the index is cut short": (_bytes(INDEX, lambda data: data[:-5]), (INDEX, "is no JSON")),
    "the index is a pointer": (_bytes(INDEX, lambda _: POINTER), (INDEX, "Git LFS")),
    "the index is empty": (_bytes(INDEX, lambda _: b"{}"), (INDEX, "weight_map")),
    "a shard of another save": (
        lambda folder: shutil.copyfile(folder / SHARD, folder / SHARD.replace("00001-", "00002-")) and None,
        ("is in", "as well"),
    ),
    "two saves": (lambda folder: shutil.copyfile(folder / SHARD, folder / SINGLE) and None, (INDEX, "two saves")),
}


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return write_toml(tmp_path)


@pytest.mark.parametrize("fault", WRONG)
def test_what_does_not_fit_is_named_and_nothing_is_written(
    fault: str, toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, words = WRONG[fault]
    folder = write_folder(tmp_path / "model")
    change(folder)
    refused(["import", str(folder), str(toml)], words, capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "my.toml"]


@pytest.mark.parametrize("fault", WRONG_SHARDED)
def test_what_does_not_fit_in_several_files(
    fault: str, toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, words = WRONG_SHARDED[fault]
    folder = write_sharded(tmp_path / "model")
    change(folder)
    refused(["import", str(folder), str(toml)], words, capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (["--model.ffn_hidden_size", "32"], ("model.ffn_hidden_size", "is 32", "says 24")),
        (["--model.num_query_groups", "4"], ("model.num_query_groups", "says 2")),
        (["--model.rope_base", "500000"], ("model.rope_base", "says 10000")),
        (["--model.qk_norm", "true"], ("model.qk_norm", "is true")),
        (["--model.sliding_window", "8"], ("model.sliding_window", 'says "none"')),
        (["--model.norm_eps", "1e-6"], ("model.norm_eps", "1e-05")),
        (["--tokenizer.vocab_size", "41"], ("tokenizer.model", "41 entries")),
        (["--tokenizer.vocab_size", "39"], ("model.vocabulary_rows", "write model.vocabulary_rows = 40")),
        (["--tag", "global_step5"], ("--tag", "neither tags")),
    ],
)
def test_a_configuration_of_another_model_is_refused(
    override: list[str], words: tuple[str, ...], toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "model")
    refused(["import", str(folder), str(toml), *override], words, capsys)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_none_is_refused(toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(["import", "some-org/some-model", str(toml)], ("there is no folder", "hf download"), capsys)
    refused(["import", str(tmp_path)], ("CONFIG.toml", "--config-only"), capsys)
    both = ["import", str(tmp_path), str(toml), "--config-only", str(tmp_path / "new.toml")]
    refused(both, ("--config-only", "no other configuration"), capsys)


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ({"model_type": "mistral"}, {"sliding_window": 4096, "num_query_groups": 2}),
        ({"model_type": "mistral", "sliding_window": None}, {"sliding_window": None}),
        ({"model_type": "mistral", "num_key_value_heads": None}, {"num_query_groups": 4}),
        ({"model_type": "qwen2"}, {"qkv_bias": True, "attention_output_bias": False, "sliding_window": None}),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1},
            {"sliding_window": 32, "sliding_layers": (1,)},
        ),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32}, {"sliding_window": None}),
        ({"model_type": "qwen3"}, {"qk_norm": True, "head_dim": 128}),
        (
            {"model_type": "qwen3", "head_dim": 4, "attention_bias": True},
            {"qkv_bias": True, "attention_output_bias": True},
        ),
        ({"attention_bias": True}, {"qkv_bias": True, "attention_output_bias": True}),
        ({"rope_theta": 500000.0}, {"rope_base": 500000, "rope_scaling.kind": "none"}),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}},
            {"rope_scaling.kind": "linear", "rope_scaling.factor": 2.0},
        ),
        (
            {"rope_scaling": {**ROPE, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}},
            {"rope_scaling.attention_factor": 1.0, "rope_scaling.original_window_tokens": 64},
        ),
    ],
)
def test_what_a_family_takes_for_granted(content: dict[str, Any], values: dict[str, Any]) -> None:
    found = read_config({**CONFIG, **content}, "config.json").values
    assert {name: found[f"model.{name}"] for name in values} == values


def test_everything_wrong_is_told_at_once() -> None:
    with pytest.raises(Refused) as caught:
        read_config({**CONFIG, "hidden_act": "relu", "mlp_bias": True, "head_dim": 3}, "config.json")
    assert len(caught.value.problems) == 3
