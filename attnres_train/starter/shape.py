"""Layers and width of a model of so many parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import log

from attnres_train.depth.config import ResidualConfig
from attnres_train.errors import refuse
from attnres_train.model.config import ModelConfig
from attnres_train.model.describe import describe

LARGE = 1_000_000_000
"""From here on heads are 128 wide and the width is 128 times the layers; below, half of both."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_WIDTH_STEPS = ((LARGE, 512), (30_000_000, 128), (0, 64))
"""Widths of models from so many parameters on are multiples of this: 4, 2 or 1 heads, that tensor ranks can share."""
_MOST_WIDTH = 16_384
_TOLERANCE = 0.2
_TIED_SHARE = 0.25
"""Input and output table are one where two would take more of the parameters than this."""
_ASPECT_WEIGHT = 0.05
"""How much a width far from the rule counts against a size far from what was asked."""


@dataclass(frozen=True)
class Shape:
    model: ModelConfig
    residual: ResidualConfig
    parameters: int

    @property
    def blocks(self) -> int:
        assert self.residual.block_size is not None
        return -(-self.model.num_sublayers // self.residual.block_size)


def read_size(text: str) -> int:
    """`100m` and the like as a number of parameters. Raises ValueError, in words."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmb]?)", text.strip().lower())
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r} is no number of parameters such as 20m, 350m or 1.3b")
    return round(float(match[1]) * _UNITS[match[2]])


def size_in_words(parameters: int) -> str:
    """As `read_size` takes it."""
    unit, name = next((unit, name) for name, unit in reversed(_UNITS.items()) if parameters >= unit)
    return f"{parameters / unit:.3g}{name}"


def shape_of(size: int, vocabulary: int) -> Shape:
    """The model nearest to `size` parameters in all, embeddings included, for a vocabulary of so many entries.

    Raises Refused where none comes near.
    """
    aspect = 128 if size >= LARGE else 64
    _, width, layers = min(_candidates(size, vocabulary, aspect))
    model = _model(size, vocabulary, width, layers)
    padded = model.padded_vocabulary(vocabulary, 1)
    residual = ResidualConfig(mode="block", block_size=max(2, round(model.num_sublayers / 16) * 2))
    best = Shape(model, residual, describe(model, residual, vocabulary, padded).parameters)
    if abs(best.parameters - size) > _TOLERANCE * size:
        message = f"{size:,} parameters: the nearest model has {best.parameters:,}"
        if best.parameters > size:
            tables = padded * model.hidden_size
            message += f", {tables:,} of them the table of a vocabulary of {vocabulary:,} at width {model.hidden_size}"
        raise refuse("--size", message, f"write --size {size_in_words(best.parameters)}, or take another vocabulary")
    return best


def _layers(width: int, aspect: int) -> range:
    """Layers worth a thought for a width: within a third of the rule, and the smallest models."""
    rule = width / aspect
    return range(max(2, round(0.75 * rule)), max(4, round(1.34 * rule)) + 1)


def _candidates(size: int, vocabulary: int, aspect: int) -> Iterator[tuple[float, int, int]]:
    """How far a model is from what was asked, its width, its layers. Readers, a thousandth of it, are left out."""
    step = next(step for least, step in _WIDTH_STEPS if size >= least)
    for width in range(step, _MOST_WIDTH + 1, step):
        model = _model(size, vocabulary, width, layers=1)
        said = describe(model, ResidualConfig(mode="standard"), vocabulary, model.padded_vocabulary(vocabulary, 1))
        layer = sum(tensor.size for tensor in said.layers[0])
        for layers in _layers(width, aspect):
            parameters = said.parameters + (layers - 1) * layer
            off_rule = abs(log(width / layers / aspect))
            yield abs(log(parameters / size)) + _ASPECT_WEIGHT * off_rule, width, layers


def _model(size: int, vocabulary: int, width: int, layers: int) -> ModelConfig:
    return ModelConfig(
        num_layers=layers,
        hidden_size=width,
        ffn_hidden_size=-(-8 * width // 3 // 128) * 128,
        num_attention_heads=max(1, width // (128 if size >= LARGE else 64)),
        qk_norm=True,
        tie_embeddings=2 * vocabulary * width > _TIED_SHARE * size,
    )
