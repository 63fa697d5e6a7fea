"""What `attnres export` refuses, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from attnres_train.checkpoint.newest import checkpoint_of
from attnres_train.errors import Refused
from attnres_train.exchange.hf_config import Sections, config_json
from attnres_train.exchange.hf_tensors import targets
from attnres_train.exchange.safetensors_writer import Entry, in_shards, write_shards
from attnres_train.model.describe import describe
from attnres_train.observe.record_lines import recorded_losses

SETTINGS = {
    "model.num_layers": 2,
    "model.hidden_size": 12,
    "model.ffn_hidden_size": 16,
    "model.num_attention_heads": 6,
    "model.num_query_groups": 2,
    "model.rope_base": 5000,
    "residual.mode": "standard",
    "training.sequence_length": 32,
}
ENDS = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 2}


def test_shards_hold_consecutive_tensors_and_no_more_than_asked() -> None:
    entries = [Entry(str(number), (size,), torch.bfloat16) for number, size in enumerate((3, 3, 9, 1, 2))]
    shards = in_shards(entries, 12)
    assert [[entry.name for entry in shard] for shard in shards] == [["0", "1"], ["2"], ["3", "4"]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_streamed_is_what_the_library_reads(tmp_path: Path, dtype: torch.dtype) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {"a": torch.randn(5, 7), "vector": torch.randn(3), "c": torch.randn(4, 6)[:, 1:4]}
    entries = [Entry(name, tuple(tensor.shape), dtype) for name, tensor in tensors.items()]
    write_shards(tmp_path, in_shards(entries, 90), iter(tensors.values()))
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(entry.bytes for entry in entries)
    for name, tensor in tensors.items():
        loaded = safetensors.load_file(tmp_path / index["weight_map"][name])[name]
        assert loaded.dtype == dtype and loaded.equal(tensor.to(dtype))


def test_a_value_too_large_for_fp16_and_a_wrong_shape_are_told(tmp_path: Path) -> None:
    entry = Entry("large", (2,), torch.float16)
    with pytest.raises(ValueError, match="large has values too large for fp16"):
        write_shards(tmp_path, [[entry]], iter([torch.tensor([1.0, 1e6])]))
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match="large has shape"):
        write_shards(tmp_path / "other", [[entry]], iter([torch.zeros(3)]))


def test_queries_keys_and_values_are_taken_from_their_groups() -> None:
    model = Sections.of(SETTINGS, "here").model
    described = describe(model, Sections.of(SETTINGS, "here").residual, 10, 10)
    (spec,) = [spec for spec in described.all if spec.name == "layers.1.attention.branch.linear_qkv.weight"]
    # Rows by group: three queries, a key, a value, each two wide.
    whole = torch.arange(20.0)[:, None].expand(20, 12)
    rows = {target.name: target.cut(whole)[:, 0].tolist() for target in targets(spec, model)}
    path = "model.layers.1.self_attn"
    assert rows[f"{path}.q_proj.weight"] == [*range(0, 6), *range(10, 16)]
    assert rows[f"{path}.k_proj.weight"] == [6, 7, 16, 17]
    assert rows[f"{path}.v_proj.weight"] == [8, 9, 18, 19]


def test_names_are_those_that_converters_to_gguf_know() -> None:
    """llama.cpp's converter maps by these."""
    gguf = pytest.importorskip("gguf", reason="the extra `pretrained` installs gguf")
    for qk_norm, architecture in ((False, gguf.MODEL_ARCH.LLAMA), (True, gguf.MODEL_ARCH.QWEN3)):
        sections = Sections.of({**SETTINGS, "model.qk_norm": qk_norm}, "here")
        known = gguf.get_tensor_name_map(architecture, 2)
        described = describe(sections.model, sections.residual, 10, 10).all
        names = [target.name for spec in described for target in targets(spec, sections.model)]
        mapped = [known.get_name(name, try_suffixes=(".weight",)) for name in names]
        assert None not in mapped and len(set(mapped)) == len(names)


def test_a_plain_configuration_says_all_that_other_programs_ask() -> None:
    sections = Sections.of(SETTINGS, "here")
    config = config_json(sections, 83, "bf16", ENDS)
    assert (config["model_type"], config["vocab_size"], config["head_dim"], config["rope_theta"]) == (
        "llama",
        83,
        2,
        5000,
    )
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 5000}
    assert (config["rms_norm_eps"], config["dtype"], config["eos_token_id"]) == (1e-5, "bfloat16", 1)
    with_norm = config_json(Sections.of({**SETTINGS, "model.qk_norm": True}, "here"), 83, "bf16", ENDS)
    assert with_norm["model_type"] == "qwen3" and with_norm["use_sliding_window"] is False
    own = config_json(Sections.of({**SETTINGS, "residual.mode": "full"}, "here"), 83, "fp32", ENDS)
    assert own["residual"]["mode"] == "full" and "auto_map" in own and "backend" not in own["residual"]


def test_settings_that_describe_no_model_are_refused() -> None:
    with pytest.raises(Refused, match="describe no model"):
        Sections.of({**SETTINGS, "model.experts": 8}, "here")
    with pytest.raises(Refused, match="describe no model"):
        Sections.of({}, "here")


def test_losses_are_the_last_before_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "step-00000002"
    checkpoint.mkdir(parents=True)
    assert recorded_losses(tmp_path, first=0, last=2) == {}
    records = [{"step": 1, "loss/train": 5.0, "loss/valid": 6.0}, {"step": 2, "loss/train": 4.0, "optim/lr": 0.1}]
    lines = [json.dumps(record) for record in [*records, {"step": 3, "loss/train": 3.0}]]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert recorded_losses(tmp_path, first=0, last=2) == {"loss/train": 4.0, "loss/valid": 6.0}


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="neither a checkpoint nor a run"):
        checkpoint_of(tmp_path)
