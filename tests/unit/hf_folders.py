"""A tiny Llama as a Hugging Face folder, made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from attnres_train.cli.run import main

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def tensors() -> dict[str, Tensor]:
    width, inner, keys = CONFIG["hidden_size"], CONFIG["intermediate_size"], 8
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (40, width),
        "lm_head.weight": (40, width),
        "model.norm.weight": (width,),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        path = f"model.layers.{layer}"
        shapes |= {
            f"{path}.input_layernorm.weight": (width,),
            f"{path}.post_attention_layernorm.weight": (width,),
            f"{path}.self_attn.q_proj.weight": (width, width),
            f"{path}.self_attn.k_proj.weight": (keys, width),
            f"{path}.self_attn.v_proj.weight": (keys, width),
            f"{path}.self_attn.o_proj.weight": (width, width),
            f"{path}.mlp.gate_proj.weight": (inner, width),
            f"{path}.mlp.up_proj.weight": (inner, width),
            f"{path}.mlp.down_proj.weight": (width, inner),
        }
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write_folder(folder: Path, **config: Any) -> Path:
    """One file of weights, as small models have."""
    folder.mkdir()
    write_json(folder / "config.json", {**CONFIG, **config})
    save_file(tensors(), folder / SINGLE, {"format": "pt"})
    return folder


def write_sharded(folder: Path) -> Path:
    """Two files of weights and their index."""
    write_folder(folder)
    whole = list(load_file(folder / SINGLE).items())
    (folder / SINGLE).unlink()
    parts = {"model-00001-of-00002.safetensors": dict(whole[:9]), "model-00002-of-00002.safetensors": dict(whole[9:])}
    for name, part in parts.items():
        save_file(part, folder / name, {"format": "pt"})
    weight_map = {tensor: name for name, part in parts.items() for tensor in part}
    write_json(folder / INDEX, {"metadata": {}, "weight_map": weight_map})
    return folder


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    write_json(path, content)


def edit_tensors(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    content = load_file(folder / SINGLE)
    change(content)
    save_file(content, folder / SINGLE, {"format": "pt"})


TOML = """
[model]
num_layers = 2
hidden_size = 16
ffn_hidden_size = 24
num_attention_heads = 4
num_query_groups = 2

[residual]
mode = "block"
block_size = 2
norm_of = "sum"

[tokenizer]
vocab_size = 40

[training]
global_batch_size = 4
micro_batch_size = 2
sequence_length = 16
steps = 4
"""


def write_toml(folder: Path) -> Path:
    """The configuration of that Llama as `block`, with a run folder beside it."""
    path = folder / "my.toml"
    path.write_text(TOML + f'run_folder = "{folder / "run"}"\n', encoding="utf-8")
    return path


def refused(arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert [word for word in words if word not in told] == [], told
