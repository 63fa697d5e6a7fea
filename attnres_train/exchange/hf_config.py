"""The JSON files of a Hugging Face folder but the index: which architecture it is, with which sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter

from attnres_train.depth.config import ResidualConfig
from attnres_train.errors import refuse
from attnres_train.exchange.hf_rope import rope_parameters
from attnres_train.model.config import ModelConfig
from attnres_train.model.rotary import attention_factor, inverse_frequencies

MODEL_FILES = ("configuration_attnres.py", "depth_attnres.py", "modeling_attnres.py")
_AUTO_MAP = {
    "AutoConfig": "configuration_attnres.AttnResConfig",
    "AutoModel": "modeling_attnres.AttnResModel",
    "AutoModelForCausalLM": "modeling_attnres.AttnResForCausalLM",
}
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_KINDS_OF_LAYERS = ("full_attention", "sliding_attention")
OWN = "attnres"
"""`model_type` of what only our own modelling file computes."""
Section = TypeVar("Section")
_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_TRAINING_ONLY = ("backend", "entropy_weight", "gate_bias")


@dataclass(frozen=True)
class Sections:
    """What of a checkpoint's settings describes the model."""

    model: ModelConfig
    residual: ResidualConfig
    sequence_length: int

    @classmethod
    def of(cls, settings: Mapping[str, Any], where: str) -> Sections:
        """Raises Refused where the settings describe no model that is known here."""
        try:
            model, residual = _section(settings, ModelConfig, "model"), _section(settings, ResidualConfig, "residual")
            return cls(model, residual, int(settings["training.sequence_length"]))
        except (TypeError, ValueError, KeyError) as error:
            what = f"its settings describe no model that is known here: {error}"
            raise refuse(where, what, "export it with the version that saved it") from error

    @property
    def family(self) -> str:
        """The plainest `model_type` that computes this: one that transformers has itself, else our own."""
        model = self.model
        both, sliding = model.qkv_bias == model.attention_output_bias, model.sliding_window is not None
        if self.residual.mode != "standard" or (model.attention_output_bias and not both):
            return OWN
        if model.qkv_bias and not both:
            # Qwen2's configuration has no head width of its own: who reads it divides.
            divided = model.head_size * model.num_attention_heads == model.hidden_size
            return "qwen2" if divided and not model.qk_norm else OWN
        if model.qk_norm:
            return "qwen3"
        everywhere = all(model.sees(layer) == model.sliding_window for layer in range(model.num_layers))
        if not model.qkv_bias and everywhere and (sliding or model.hidden_size % model.num_attention_heads):
            return "mistral"  # transformers' Llama refuses widths that heads do not divide
        return OWN if sliding or model.hidden_size % model.num_attention_heads else "llama"

    @property
    def plain(self) -> bool:
        """Whether transformers has the architecture itself."""
        return self.family != OWN


def _section(settings: Mapping[str, Any], cls: type[Section], name: str) -> Section:
    """The section of dotted keys; JSON has lists where it has tuples."""
    tree: dict[str, Any] = {}
    for dotted, value in settings.items():
        *tables, key = dotted.split(".")
        if tables[0] == name:
            inner = tree
            for table in tables[1:]:
                inner = inner.setdefault(table, {})
            inner[key] = value
    return TypeAdapter(cls).validate_json(json.dumps(tree))


def config_json(
    sections: Sections, vocabulary: int, dtype: str, ends: Mapping[str, int | None], family: str | None = None
) -> dict[str, Any]:
    """`config.json`; `ends` are the ids of special tokens, as `eos_token_id`. `family` None is the plainest."""
    model = sections.model
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.query_groups,
        "head_dim": model.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": sections.sequence_length,
        "initializer_range": model.init_std,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": float(model.rope_base),
        "tie_word_embeddings": model.tie_embeddings,
        "attention_bias": model.attention_output_bias,
        "use_cache": True,
        "dtype": _NAMES[dtype],
        **ends,
    }
    family = sections.family if family is None else family
    if family == OWN:
        residual = {name: value for name, value in asdict(sections.residual).items() if name not in _TRAINING_ONLY}
        own = {"architectures": ["AttnResForCausalLM"], "model_type": OWN, "auto_map": _AUTO_MAP}
        return {**own, **sizes, **_own_attention(model), "residual": residual}
    # Once as transformers 5 reads it, once as other programs do.
    sizes["rope_parameters"] = rope_parameters(model)
    if model.rope_scaling.kind != "none":
        sizes["rope_scaling"] = {k: v for k, v in rope_parameters(model).items() if k != "rope_theta"}
    named = {"architectures": [_CLASSES[family]], "model_type": family, **sizes}
    if family == "llama":
        return {**named, "mlp_bias": False}
    return {**named, **_sliding(model, family)}


def _own_attention(model: ModelConfig) -> dict[str, Any]:
    """What our own modelling file is told of attention beside the sizes; frequencies as they were trained with."""
    found: dict[str, Any] = {
        "qk_norm": model.qk_norm,
        "qkv_bias": model.qkv_bias,
        "attention_output_bias": model.attention_output_bias,
    }
    if model.sliding_window is not None:
        found["attention_windows"] = [model.sees(layer) for layer in range(model.num_layers)]
    if model.rope_scaling.kind != "none":
        found["rope_parameters"] = rope_parameters(model)
        found["rope_inverse_frequencies"] = inverse_frequencies(model)
        found["rope_attention_factor"] = attention_factor(model.rope_scaling)
    return found


def _sliding(model: ModelConfig, family: str) -> dict[str, Any]:
    """The window as the family says it."""
    if family == "mistral":
        return {"sliding_window": model.sliding_window}
    if model.sliding_window is None:
        return {"use_sliding_window": False}
    kinds = [
        "full_attention" if model.sees(layer) is None else "sliding_attention" for layer in range(model.num_layers)
    ]
    first = kinds.index("sliding_attention")
    stated = {"use_sliding_window": True, "sliding_window": model.sliding_window, "layer_types": kinds}
    # Other programs know only of a first layer.
    return {**stated, **({} if "full_attention" in kinds[first:] else {"max_window_layers": first})}


def generation_json(ends: Mapping[str, int | None]) -> dict[str, Any]:
    """`generation_config.json`: samples as the model says, nothing cut, until the end of the document."""
    return {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, **ends}
