"""A model of a Hugging Face folder becomes step 0 of a run, and goes out again with the bits that it came with."""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnres_train.cli.run import main
from tests.unit.hf_folders import edit_tensors, refused, write_folder, write_toml

transformers = pytest.importorskip("transformers", reason="the test extra installs transformers")

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": LLAMA3, "attention_bias": True, "head_dim": 10}),
    "llama tied": ("Llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "mistral": ("Mistral", {"sliding_window": 6}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 12, "rope_parameters": YARN, "tie_word_embeddings": True}),
}
IDS = torch.randint(0, 40, (2, 16), generator=torch.Generator().manual_seed(5))


def run(arguments: list[str]) -> int:
    """A command in a process of its own, since it starts a process group."""
    process = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(main(arguments)))
    process.start()
    process.join(timeout=60)
    assert process.exitcode is not None
    return process.exitcode


def random_model(family: str, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Every weight is random, those of norms and biases too, in several files."""
    name, options = FAMILIES[family]
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    config = getattr(transformers, f"{name}Config")(**{**sizes, **heads, **options})
    torch.manual_seed(11)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    model.to(dtype).save_pretrained(folder, max_shard_size="30KB")
    return model.eval()


def weights(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def logits(folder: Path) -> Tensor:
    with torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32)
        found: Tensor = model.eval()(IDS).logits
        return found


def import_into(folder: Path, run_folder: Path, *overrides: str) -> None:
    """With the configuration that is made for it."""
    toml = run_folder.with_suffix(".toml")
    if not toml.exists():
        assert main(["import", str(folder), "--config-only", str(toml)]) == 0
    assert run(["import", str(folder), str(toml), "--training.run_folder", str(run_folder), *overrides]) == 0


def export(run_folder: Path, folder: Path, dtype: str = "fp32") -> Path:
    arguments = ["export", str(run_folder), str(folder), "--dtype", dtype, "--max-shard-mib", "1"]
    assert main([*arguments, "--no-tokenizer"]) == 0
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_what_comes_in_goes_out_with_the_same_bits(family: str, tmp_path: Path) -> None:
    model = random_model(family, tmp_path / "in", torch.bfloat16)
    import_into(tmp_path / "in", tmp_path / "run")
    out = export(tmp_path / "run", tmp_path / "out", "bf16")
    before, after = weights(tmp_path / "in"), weights(out)
    assert before.keys() == after.keys()
    assert all(after[name].equal(tensor) for name, tensor in before.items())
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == [type(model).__name__]
    assert logits(out).equal(logits(tmp_path / "in"))


@pytest.mark.parametrize("family", ["llama tied", "qwen3"])
@pytest.mark.parametrize("residual", [("block", "3"), ("full", "none")])
def test_attention_over_depth_begins_as_the_same_function(
    family: str, residual: tuple[str, str], tmp_path: Path
) -> None:
    """To fp32 rounding, also where eps is large; with the norm of the mix it does not."""
    random_model(family, tmp_path / "in")
    mode, size = residual
    options = ("--residual.mode", mode, "--residual.block_size", size)
    import_into(tmp_path / "in", tmp_path / "sum", *options, "--residual.norm_of", "sum")
    wanted = logits(tmp_path / "in")
    found = logits(export(tmp_path / "sum", tmp_path / "sum-out"))
    assert ((found - wanted).abs().max() / wanted.abs().max()).item() < 2e-6
    if family == "llama tied":
        import_into(tmp_path / "in", tmp_path / "mix", *options)
        other = logits(export(tmp_path / "mix", tmp_path / "mix-out"))
        assert ((other - wanted).abs().max() / wanted.abs().max()).item() > 1e-4


def test_our_own_exports_come_in_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With their readers of the depth; as another mode they are refused."""
    random_model("qwen3", tmp_path / "in")
    options = ("--residual.mode", "block", "--residual.block_size", "2", "--residual.key_rank", "4")
    import_into(tmp_path / "in", tmp_path / "first", *options)
    first = export(tmp_path / "first", tmp_path / "first-out")
    import_into(first, tmp_path / "second")
    second = export(tmp_path / "second", tmp_path / "second-out")
    before, after = weights(first), weights(second)
    assert any("key_projection" in name for name in before)
    assert before.keys() == after.keys() and all(after[name].equal(tensor) for name, tensor in before.items())
    capfd.readouterr()
    toml = str(tmp_path / "second.toml")
    arguments = ["import", str(first), toml, "--training.run_folder", str(tmp_path / "third")]
    assert run([*arguments, "--residual.key_rank", "8"]) == 2
    assert "residual.key_rank: is 8" in capfd.readouterr().err


def test_tables_that_differ_are_not_tied(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where they are equal, as some tools write tied models, the second is left out."""
    toml, folder = write_toml(tmp_path), write_folder(tmp_path / "model", tie_word_embeddings=True)
    arguments = ["import", str(folder), str(toml), "--model.tie_embeddings", "true"]
    refused(arguments, ("lm_head.weight", "one of the two would be lost"), capfd)
    assert not (tmp_path / "run").exists()
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert run(arguments) == 0


def test_a_second_import_into_a_run_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    toml, folder = write_toml(tmp_path), write_folder(tmp_path / "model")
    assert run(["import", str(folder), str(toml), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["family"] == "llama" and found["step"] == 0
    assert "every reader starts as the sum" in found["notes"][0]
    refused(["import", str(folder), str(toml)], ("step-00000000", "at or after step 0"), capfd)


def test_the_configuration_of_a_folder_is_written_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, target = write_folder(tmp_path / "model", rms_norm_eps=1e-6), tmp_path / "new.toml"
    assert main(["import", str(folder), "--config-only", str(target)]) == 0
    text = target.read_text(encoding="utf-8")
    assert "norm_eps = 1e-06" in text and "vocabulary_rows = 40" in text and "num_query_groups = 2" in text
    assert run(["import", str(folder), str(target), "--training.run_folder", str(tmp_path / "run")]) == 0
    capfd.readouterr()
    refused(["import", str(folder), "--config-only", str(target)], ("exists already",), capfd)
    assert target.read_text(encoding="utf-8") == text
