"""From a Hugging Face config.json to the keys of `[model]` and `[residual]`; pure, and nothing that it names is run.

Defaults are those of transformers' own configurations; keys that those do not read are left out, and named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnres_train.errors import Problem, Refused
from attnres_train.exchange.hf_rope import rope_values

_ANOTHER = "import a model of the Llama family: llama, mistral, qwen2, qwen3, or an export of this package"
_UNSAID = "complete config.json as the model's publisher has it"
_SIZES = {
    "hidden_size": "model.hidden_size",
    "intermediate_size": "model.ffn_hidden_size",
    "num_hidden_layers": "model.num_layers",
    "num_attention_heads": "model.num_attention_heads",
}
_OF_RESIDUAL = (
    "mode",
    "block_size",
    "window",
    "query",
    "weights",
    "heads",
    "key_rank",
    "key_norm",
    "temperature",
    "norm_of",
    "gate",
)
_READ = (
    *_SIZES,
    "architectures",
    "attention_bias",
    "attention_output_bias",
    "attention_windows",
    "auto_map",
    "head_dim",
    "hidden_act",
    "initializer_range",
    "layer_types",
    "max_position_embeddings",
    "max_window_layers",
    "mlp_bias",
    "model_type",
    "num_key_value_heads",
    "qk_norm",
    "qkv_bias",
    "quantization_config",
    "residual",
    "rms_norm_eps",
    "rope_attention_factor",
    "rope_inverse_frequencies",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "use_sliding_window",
    "vocab_size",
)
_ABOUT_OTHER_THINGS = (
    "attention_dropout",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "pad_token_id",
    "pretraining_tp",
    "torch_dtype",
    "transformers_version",
    "unk_token_id",
    "use_cache",
)
"""Not of what the model computes once it is trained; not worth a word."""


@dataclass(frozen=True)
class Family:
    """What transformers takes for granted of one `model_type`."""

    qk_norm: bool = False
    qkv_bias: bool = False
    biases_by_flag: bool = False
    """Whether `attention_bias` asks for biases of all four projections."""
    head_dim: int | None = None
    sliding_window: int | None = None
    slides: str = "never"
    """`never`; `always`, if there is a window; `if told`, by use_sliding_window."""
    groups: int | None = None
    """Of keys and values, where the file says nothing; None: one a head."""


FAMILIES: Mapping[str, Family] = {
    "llama": Family(biases_by_flag=True),
    "mistral": Family(sliding_window=4096, slides="always", groups=8),
    "qwen2": Family(qkv_bias=True, sliding_window=4096, slides="if told", groups=32),
    "qwen3": Family(qk_norm=True, biases_by_flag=True, head_dim=128, sliding_window=4096, slides="if told", groups=32),
    "attnres": Family(),
}


@dataclass(frozen=True)
class Described:
    """The model of a config.json."""

    family: str
    vocabulary: int
    window_tokens: int | None
    """The longest that it was made for."""
    values: Mapping[str, Any]
    """By dotted key of ours, only what such a file says."""
    unread: tuple[str, ...]
    """Keys of the file that transformers' own code does not read either, as far as is known here."""

    @property
    def plain(self) -> bool:
        """Whether it has the standard residual."""
        return "residual.mode" not in self.values


@dataclass
class _Reading:
    """One file; problems are collected, so that all are told at once."""

    where: str
    content: Mapping[str, Any]
    problems: list[Problem] = field(default_factory=list)

    def wrong(self, key: str, message: str, remedy: str = _ANOTHER) -> None:
        self.problems.append(Problem(f"{self.where}: {key}", message, remedy))

    def get(self, key: str, kind: type | tuple[type, ...], default: Any) -> Any:
        """The value; null is the default. A value of another kind is a problem."""
        value = self.content.get(key)
        if value is None:
            return default
        # In Python true is a number, in JSON it is not.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.wrong(key, f"{value!r} is not what belongs there", _UNSAID)
            return default
        return value

    def size(self, key: str) -> int:
        """A count that must be there."""
        value: int = self.get(key, int, 0)
        if value < 1:
            self.wrong(key, "is not there" if key not in self.content else f"{self.content[key]!r} is no size", _UNSAID)
        return max(1, value)


def read_config(content: Mapping[str, Any], where: str) -> Described:
    """What `content` of the file `where` describes. Raises Refused with everything that cannot be represented."""
    reading = _Reading(where, content)
    name = content.get("model_type")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None or not isinstance(name, str):
        reading.wrong("model_type", "is not there" if name is None else f"{name!r} is no family that is known here")
        raise Refused(reading.problems)
    _refuse_what_changes_weights(reading, name)
    sizes = {ours: reading.size(theirs) for theirs, ours in _SIZES.items()}
    values = {**sizes, **_attention(reading, family, sizes), **_numbers(reading)}
    values |= rope_values(content, values["model.head_dim"], reading.wrong)
    values |= _sliding(reading, family, sizes["model.num_layers"])
    if name == "attnres":
        values |= _residual(reading)
    vocabulary = reading.size("vocab_size")
    if reading.problems:
        raise Refused(reading.problems)
    others = content.keys() - set(_READ) - set(_ABOUT_OTHER_THINGS)
    unread = tuple(sorted(key for key in others if not key.startswith("_")))
    window = content.get("max_position_embeddings")
    return Described(name, vocabulary, window if isinstance(window, int) else None, values, unread)


def _refuse_what_changes_weights(reading: _Reading, name: str) -> None:
    if "quantization_config" in reading.content:
        remedy = "import the model as it was before it was quantized"
        reading.wrong("quantization_config", "the weights are quantized: they are not what is trained", remedy)
    if "auto_map" in reading.content and name != "attnres":
        what = "the folder brings code of its own, which is not run, so nobody knows what the model computes"
        reading.wrong("auto_map", what)
    activation = reading.content.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        reading.wrong("hidden_act", f"{activation!r}: MLPs here are SwiGLU, of silu")
    if reading.get("mlp_bias", bool, False):
        reading.wrong("mlp_bias", "is true: MLPs here have no biases")


def _attention(reading: _Reading, family: Family, sizes: Mapping[str, int]) -> dict[str, Any]:
    width, heads = sizes["model.hidden_size"], sizes["model.num_attention_heads"]
    groups = reading.get("num_key_value_heads", int, None)
    if groups is None:
        groups = heads if "num_key_value_heads" in reading.content or family.groups is None else family.groups
    if groups < 1 or heads % groups:
        reading.wrong("num_key_value_heads", f"{groups} does not divide num_attention_heads = {heads}", _UNSAID)
    head_dim = reading.get("head_dim", int, None)
    if head_dim is None:
        head_dim = family.head_dim if family.head_dim and "head_dim" not in reading.content else max(1, width // heads)
    if head_dim < 2 or head_dim % 2:
        reading.wrong("head_dim", f"{head_dim}: rotary positions need heads of an even width")
    flag = reading.get("attention_bias", bool, False)
    by_flag = family.biases_by_flag and flag
    return {
        "model.num_query_groups": groups,
        "model.head_dim": head_dim,
        "model.qk_norm": reading.get("qk_norm", bool, family.qk_norm),
        "model.qkv_bias": family.qkv_bias or by_flag or reading.get("qkv_bias", bool, False),
        "model.attention_output_bias": by_flag or reading.get("attention_output_bias", bool, False),
    }


def _numbers(reading: _Reading) -> dict[str, Any]:
    eps = float(reading.get("rms_norm_eps", (int, float), 1e-6))
    if eps < 0:
        reading.wrong("rms_norm_eps", f"{eps!r} is below zero", _UNSAID)
    return {
        "model.tie_embeddings": reading.get("tie_word_embeddings", bool, False),
        "model.norm_eps": eps,
        "model.init_std": float(reading.get("initializer_range", (int, float), 0.02)) or 0.02,
    }


def _sliding(reading: _Reading, family: Family, layers: int) -> dict[str, Any]:
    """The window, and of which layers."""
    if family is FAMILIES["attnres"]:
        return _own_windows(reading, layers)
    window = reading.get("sliding_window", int, None)
    if window is None and "sliding_window" not in reading.content:
        window = family.sliding_window
    told = reading.get("use_sliding_window", bool, False)
    if family.slides == "never" or (family.slides == "if told" and not told) or window is None:
        return {"model.sliding_window": None, "model.sliding_layers": None}
    if window < 1:
        reading.wrong("sliding_window", f"{window} is no number of tokens", _UNSAID)
    kinds = reading.get("layer_types", list, None)
    if kinds is None:
        first = reading.get("max_window_layers", int, 28) if family.slides == "if told" else 0
        sliding = [layer for layer in range(layers) if layer >= first]
    else:
        strange = sorted({str(kind) for kind in kinds} - {"full_attention", "sliding_attention"})
        if strange or len(kinds) != layers:
            what = f"has {', '.join(strange)}" if strange else f"names {len(kinds)} layers of {layers}"
            reading.wrong("layer_types", what)
        sliding = [layer for layer, kind in enumerate(kinds) if kind == "sliding_attention"]
    if not sliding:
        return {"model.sliding_window": None, "model.sliding_layers": None}
    return {"model.sliding_window": window, "model.sliding_layers": None if len(sliding) == layers else tuple(sliding)}


def _own_windows(reading: _Reading, layers: int) -> dict[str, Any]:
    """Of our own exports: the window of every layer, null for all before a token."""
    windows = reading.get("attention_windows", list, [None] * layers)
    sizes = {window for window in windows if window is not None}
    if len(windows) != layers or len(sizes) > 1 or not all(isinstance(size, int) and size > 0 for size in sizes):
        reading.wrong("attention_windows", f"{windows!r} is not one window for some of {layers} layers", _UNSAID)
    sliding = tuple(layer for layer, window in enumerate(windows) if window is not None)
    if not sliding:
        return {"model.sliding_window": None, "model.sliding_layers": None}
    layers_told = None if len(sliding) == layers else sliding
    return {"model.sliding_window": windows[sliding[0]], "model.sliding_layers": layers_told}


def _residual(reading: _Reading) -> dict[str, Any]:
    """Of our own exports."""
    options = reading.get("residual", dict, {})
    for name in sorted(options.keys() - set(_OF_RESIDUAL)):
        remedy = "import it with the version that exported it"
        reading.wrong(f"residual.{name}", f"{options[name]!r} is no option that is known here", remedy)
    values = {f"residual.{name}": options[name] for name in _OF_RESIDUAL if name in options}
    return values if values.get("residual.mode", "standard") != "standard" else {}
