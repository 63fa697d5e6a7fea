"""The residual modes and options that every layout is tested with: one table, by name, of [residual] sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "standard": {"mode": "standard"},
    "full": {"mode": "full"},
    "block": {"mode": "block", "block_size": 3},
}

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "gated branch": {"mode": "gated", "gate_bias": 1.0},
    "gated highway": {"mode": "gated", "gate": "highway", "gate_bias": -1.0},
    "denseformer": {"mode": "denseformer"},
    "full, window": {"mode": "full", "window": 2},
    "block, window": {"mode": "block", "block_size": 1, "window": 3},
    "block of 2": {"mode": "block", "block_size": 2},
    "block of 2, query from the input": {"mode": "block", "block_size": 2, "query": "input", "temperature": 2.0},
    "full, query from the input, low rank": {"mode": "full", "query": "input", "key_rank": 8, "heads": 2},
    "block, low-rank keys": {"mode": "block", "block_size": 3, "key_rank": 4},
    "block, heads": {"mode": "block", "block_size": 3, "heads": 4},
    "full, sigmoid": {"mode": "full", "weights": "sigmoid"},
    "block, keys without norm": {"mode": "block", "block_size": 3, "key_norm": False},
    "full, static": {"mode": "full", "weights": "static", "heads": 4},
    "block, norm of the sum": {"mode": "block", "block_size": 3, "norm_of": "sum"},
    "full, sigmoid, norm of the sum": {"mode": "full", "weights": "sigmoid", "norm_of": "sum"},
    "block, entropy": {"mode": "block", "block_size": 3, "entropy_weight": 0.1},
}

CASES: Mapping[str, Mapping[str, Any]] = {**PUBLISHED, **VARIANTS}

ISOLATED: Mapping[str, str] = {
    "standard, isolated documents": "standard",
    "full, isolated documents": "full",
    "block, isolated documents": "block",
    "full, another attention, isolated documents": "full",
}
"""The cases whose attention stays inside documents (data.isolate_documents), by the residual they have."""

_ANOTHER_ATTENTION: Mapping[str, Any] = {
    "head_dim": 12,
    "qkv_bias": True,
    "attention_output_bias": True,
    "sliding_window": 5,
    "sliding_layers": (0, 2),
    "rope_scaling": {"kind": "yarn", "factor": 4.0, "original_window_tokens": 8, "beta_fast": 2.0},
}
ATTENTIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "block, another attention": ("block", _ANOTHER_ATTENTION),
    "full, another attention, isolated documents": ("full", _ANOTHER_ATTENTION),
}
"""Cases with options of `[model]` that change what attention is: the residual they have, and the options."""
