"""The JSON files of a Hugging Face folder but the index: which architecture it is, with which sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from attnres_train.depth.config import ResidualConfig
from attnres_train.errors import refuse
from attnres_train.model.config import ModelConfig

MODEL_FILES = ("configuration_attnres.py", "depth_attnres.py", "modeling_attnres.py")
_AUTO_MAP = {
    "AutoConfig": "configuration_attnres.AttnResConfig",
    "AutoModel": "modeling_attnres.AttnResModel",
    "AutoModelForCausalLM": "modeling_attnres.AttnResForCausalLM",
}
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
            model = ModelConfig(**_section(settings, "model"))
            residual = ResidualConfig(**_section(settings, "residual"))
            return cls(model, residual, int(settings["training.sequence_length"]))
        except (TypeError, ValueError, KeyError) as error:
            what = f"its settings describe no model that is known here: {error}"
            raise refuse(where, what, "export it with the version that saved it") from error

    @property
    def plain(self) -> bool:
        """Whether transformers has the architecture itself."""
        return self.residual.mode == "standard"


def _section(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key.partition(".")[2]: value for key, value in settings.items() if key.startswith(f"{name}.")}


def config_json(sections: Sections, vocabulary: int, dtype: str, ends: Mapping[str, int | None]) -> dict[str, Any]:
    """`config.json`; `ends` are the ids of special tokens, as `eos_token_id`."""
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
        "attention_bias": False,
        "use_cache": True,
        "dtype": _NAMES[dtype],
        **ends,
    }
    if not sections.plain:
        residual = {name: value for name, value in asdict(sections.residual).items() if name not in _TRAINING_ONLY}
        own = {"architectures": ["AttnResForCausalLM"], "model_type": "attnres", "auto_map": _AUTO_MAP}
        return {**own, **sizes, "qk_norm": model.qk_norm, "residual": residual}
    # Once as transformers 5 reads it, once as other programs do.
    sizes["rope_parameters"] = {"rope_type": "default", "rope_theta": float(model.rope_base)}
    if model.qk_norm:
        return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **sizes, "use_sliding_window": False}
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes, "mlp_bias": False}


def generation_json(ends: Mapping[str, int | None]) -> dict[str, Any]:
    """`generation_config.json`: samples as the model says, nothing cut, until the end of the document."""
    return {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, **ends}
