"""What one look at the depth found, as plain numbers: of every reader its weights, and the sizes of what flows.

A *reader* is a sublayer or the head. Means are over all tokens of a step, whether their loss is counted or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from attnres_train.depth.layout import DepthLayout

SIZES = ("input_rms", "output_rms", "partial_rms", "gradient_rms")
"""Of a sublayer: what it reads, before its norm; what its branch puts out; the running sum afterwards (with `full` the
output itself, with `standard` the residual stream); the gradient of the output."""
MOST_WEIGHT_CURVES = 600
"""Of more pairs of reader and source the weights are in `depth.jsonl` and on the map alone."""


@dataclass(frozen=True)
class ReaderLook:
    """One reader. What does not apply is None: the head puts nothing out, `standard` weighs nothing."""

    name: str
    sources: tuple[int, ...]
    """Complete sources by number, oldest first; 0 is the embedding."""
    partial: bool
    """Whether the partial is read too, after the sources."""
    weights: tuple[float, ...] | None
    """Mean weight of each source and the partial."""
    entropy: float | None
    """Mean entropy of a token's weights, in nats; at most the logarithm of their number."""
    query_norm: float | None
    input_rms: float
    output_rms: float | None
    partial_rms: float | None
    gradient_rms: float | None
    """Of the sum of the tokens' losses, so that it does not depend on the batch size."""

    @property
    def on_embedding(self) -> float | None:
        return None if self.weights is None else self.weights[0]

    @property
    def on_newest(self) -> float | None:
        """The weight of the newest complete source."""
        return None if self.weights is None else self.weights[len(self.sources) - 1]

    @property
    def on_partial(self) -> float | None:
        return None if self.weights is None or not self.partial else self.weights[-1]


@dataclass(frozen=True)
class DepthLook:
    """All readers of a model, in order, the head last."""

    readers: tuple[ReaderLook, ...]

    def record(self) -> dict[str, Any]:
        """The line of `depth.jsonl`, without the step."""
        return {"readers": [asdict(reader) for reader in self.readers]}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> DepthLook:
        """Raises ValueError for a record that is none of a look."""
        look = TypeAdapter(cls).validate_python({"readers": record.get("readers")})
        for reader in look.readers:
            _check_reader(reader, len(look.readers))
        return look

    def curves(self) -> dict[str, float]:
        """Values by tag: `depth/entropy/03-mlp`; of every reader, also of one that has a single source."""
        values: dict[str, float | None] = {}
        for reader in self.readers:
            values[f"depth/weight_on_embedding/{reader.name}"] = reader.on_embedding
            values[f"depth/weight_on_newest/{reader.name}"] = reader.on_newest
            values[f"depth/weight_on_partial/{reader.name}"] = reader.on_partial
            for kind in ("entropy", "query_norm", *SIZES):
                values[f"depth/{kind}/{reader.name}"] = getattr(reader, kind)
        if sum(len(reader.weights or ()) for reader in self.readers) <= MOST_WEIGHT_CURVES:
            for reader in self.readers:
                for source, weight in _by_source(reader):
                    values[f"depth/weight/{reader.name}/{source}"] = weight
        return {tag: value for tag, value in values.items() if value is not None}


def reader_name(layout: DepthLayout, reader: int) -> str:
    """`03-attention`, `03-mlp` of layer 3, as many digits as the last layer has; `head`."""
    if reader == layout.num_sublayers:
        return "head"
    digits = len(str(layout.num_sublayers // 2 - 1))
    return f"{reader // 2:0{max(2, digits)}d}-{('attention', 'mlp')[reader % 2]}"


def is_share(reader: ReaderLook) -> bool:
    """Whether the weights are shares of one, so that an equal share means something."""
    return reader.weights is not None and math.isclose(sum(reader.weights), 1.0, abs_tol=1e-3)


def _check_reader(reader: ReaderLook, readers: int) -> None:
    """Raises ValueError where what it reads cannot be."""
    if absurd := [source for source in reader.sources if not 0 <= source < readers]:
        raise ValueError(f"{reader.name}: source {absurd[0]} of a model of {readers} readers")
    if reader.weights is None:
        return
    if not reader.sources:
        raise ValueError(f"{reader.name}: {len(reader.weights)} weights of no source")
    wanted = len(reader.sources) + reader.partial
    if len(reader.weights) != wanted:
        raise ValueError(f"{reader.name}: {len(reader.weights)} weights of {wanted} that it reads")


def _by_source(reader: ReaderLook) -> Iterator[tuple[str, float]]:
    names = [*(f"source-{number:02d}" for number in reader.sources), *(["partial"] if reader.partial else [])]
    yield from zip(names, reader.weights or (), strict=False)
