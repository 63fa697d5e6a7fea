"""Frequencies of rotary positions, scaled as models with longer windows scale them; plain arithmetic (no torch).

Definitions: transformers' modeling_rope_utils. Legend: K width of a head; entry i turns with entry i + K/2.
"""

from __future__ import annotations

import math

from attnres_train.model.config import ModelConfig, RopeScaling


def inverse_frequencies(model: ModelConfig) -> list[float]:
    """Radians a token of each of the K/2 pairs of a head."""
    width, scaling = model.head_size, model.rope_scaling
    plain = [model.rope_base ** (-pair / width) for pair in range(0, width, 2)]
    if scaling.kind == "none":
        return plain
    assert scaling.factor is not None, "rules.py has seen to it"
    if scaling.kind == "linear":
        shares = [1.0] * len(plain)
    elif scaling.kind == "llama3":
        shares = [_stretched_by_wavelength(2 * math.pi / frequency, scaling) for frequency in plain]
    else:
        shares = _ramp(width, model.rope_base, scaling)
    stretched = [f * (share / scaling.factor + 1 - share) for f, share in zip(plain, shares, strict=True)]
    return stretched


def attention_factor(scaling: RopeScaling) -> float:
    """What cosines and sines are multiplied by: scores grow with its square."""
    if scaling.kind != "yarn":
        return 1.0
    assert scaling.factor is not None, "rules.py has seen to it"
    return scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1.0


def _stretched_by_wavelength(wavelength: float, scaling: RopeScaling) -> float:
    """For llama3: 0 leaves a pair as it is, 1 stretches it whole."""
    window, low, high = scaling.original_window_tokens, scaling.low_freq_factor, scaling.high_freq_factor
    assert window is not None and low is not None and high is not None, "rules.py has seen to it"
    return min(1.0, max(0.0, 1 - (window / wavelength - low) / (high - low)))


def _ramp(width: int, base: int, scaling: RopeScaling) -> list[float]:
    """For yarn: from 0 at the pair that turns `beta_fast` times in the original window to 1 at `beta_slow` times."""
    window = scaling.original_window_tokens
    assert window is not None, "rules.py has seen to it"

    def pair_that_turns(times: float) -> float:
        return width * math.log(window / (times * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001  # as the definition: a step instead of a ramp
    return [min(1.0, max(0.0, (pair - low) / (high - low))) for pair in range(width // 2)]
