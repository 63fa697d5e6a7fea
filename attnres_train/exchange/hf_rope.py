"""Rotary positions of a Hugging Face config.json, as transformers 4 and 5 write them, in the words of `[model]`; pure.

Which keys a kind has, and what is taken where one is missing: transformers' modeling_rope_utils.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from attnres_train.model.config import ModelConfig
from attnres_train.model.rotary import attention_factor

_KINDS = ("default", "linear", "llama3", "yarn")
_KNOWN = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}
_NEEDED = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "yarn": ("factor",)}
_ALSO = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_SAID = "complete config.json as the model's publisher has it"

Wrong = Callable[[str, str, str], None]
"""Is told the key, what is wrong with it, and the remedy."""


def rope_values(content: Mapping[str, Any], head_dim: int, wrong: Wrong) -> dict[str, Any]:
    """`model.rope_base` and, where positions are scaled, the keys of `model.rope_scaling`."""
    new, old = content.get("rope_parameters"), content.get("rope_scaling")
    for key, table in (("rope_parameters", new), ("rope_scaling", old)):
        if table is not None and not isinstance(table, dict):
            wrong(key, f"{table!r} is no table", _SAID)
            return {}
    parameters = {**(old or {}), **(new or {})}
    if any(isinstance(value, dict) for value in parameters.values()):
        wrong("rope_parameters", "says something else for every kind of layer", "import a model with one kind of them")
        return {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in _KINDS:
        wrong("rope_type", f"{kind!r}: known here are {', '.join(_KINDS)}", "import a model with one of these")
        return {}
    base = _base(content, parameters, wrong)
    share = parameters.get("partial_rotary_factor", content.get("partial_rotary_factor"))
    if share not in (None, 1):
        wrong("partial_rotary_factor", f"{share!r}: all of a head is turned here", "import a model that does so")
    if strange := sorted(parameters.keys() - set(_KNOWN[kind]) - set(_ALSO)):
        wrong(f"rope_parameters.{strange[0]}", f"is no part of {kind!r}", _SAID)
    given = {name: parameters[name] for name in _KNOWN[kind] if parameters.get(name) is not None}
    for name, value in given.items():
        if not (isinstance(value, bool) if name == "truncate" else _is_number(value)):
            wrong(f"rope_parameters.{name}", f"{value!r} is not what belongs there", _SAID)
            return {}
    if missing := [name for name in _NEEDED.get(kind, ()) if name not in given]:
        wrong(f"rope_parameters.{missing[0]}", f"is not there, and {kind!r} needs it", _SAID)
        return {}
    values = {"model.rope_base": base, "model.rope_scaling.kind": "none" if kind == "default" else kind}
    return values | {f"model.rope_scaling.{name}": value for name, value in _scaling(kind, given, content).items()}


def rope_parameters(model: ModelConfig) -> dict[str, Any]:
    """The other way: what transformers 5 calls so."""
    scaling, base = model.rope_scaling, {"rope_theta": float(model.rope_base)}
    if scaling.kind == "none":
        return {"rope_type": "default", **base}
    found: dict[str, Any] = {"rope_type": scaling.kind, **base, "factor": scaling.factor}
    if scaling.kind == "linear":
        return found
    found["original_max_position_embeddings"] = scaling.original_window_tokens
    if scaling.kind == "llama3":
        return {**found, "low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    ramp = {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow, "truncate": scaling.truncate}
    return {**found, **ramp, "attention_factor": attention_factor(scaling)}


def _base(content: Mapping[str, Any], parameters: Mapping[str, Any], wrong: Wrong) -> int:
    said = (content.get("rope_theta"), parameters.get("rope_theta"))
    stated = {float(value) for value in said if value is not None and _is_number(value)}
    if len(stated) > 1:
        wrong("rope_theta", f"is said twice: {sorted(stated)}", "leave the one that the model was trained with")
    base = max(stated, default=10_000.0)
    if base < 1 or base != int(base):
        wrong("rope_theta", f"{base!r} is no whole number of at least 1", "import a model with such a base")
    return int(base)


def _scaling(kind: str, given: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """What a kind has, in our words."""
    if kind == "default":
        return {}
    found: dict[str, Any] = {"factor": float(given["factor"])}
    if kind == "linear":
        return found
    original = given.get("original_max_position_embeddings", content.get("max_position_embeddings"))
    found["original_window_tokens"] = int(original) if _is_number(original) else None
    if kind == "llama3":
        return found | {name: float(given[name]) for name in ("low_freq_factor", "high_freq_factor")}
    return found | {
        "beta_fast": float(given.get("beta_fast") or 32),
        "beta_slow": float(given.get("beta_slow") or 1),
        "attention_factor": _attention_factor(given),
        "truncate": given.get("truncate", True),
    }


def _attention_factor(given: Mapping[str, Any]) -> float:
    """What cosines and sines are multiplied by."""
    if "attention_factor" in given:
        return float(given["attention_factor"])
    scale, over = given.get("mscale"), given.get("mscale_all_dim")
    if scale and over:
        return _grown(given["factor"], scale) / _grown(given["factor"], over)
    return _grown(given["factor"], 1)


def _grown(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
