"""The parameter tensors of a stage in the order in which the model holds them, as plain sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from attnres_train.config.run_config import RunConfig
from attnres_train.depth.config import ResidualConfig
from attnres_train.depth.layout import DepthLayout
from attnres_train.depth.modes.choose import mode_of
from attnres_train.model.config import ModelConfig
from attnres_train.parallel.wire import WirePlan


@dataclass(frozen=True)
class ParameterTensor:
    """One parameter, `size` elements in the whole model."""

    size: int
    divided: bool
    """Over the tensor ranks; else whole on each."""
    pieces: int = 1
    """Of each tensor rank's part, in logical order: 2 for the stacked gate and up."""
    single: bool = False
    """fp32 under every precision: the parameters of depth readers."""
    table: bool = False
    """Embedding or output projection: its padded rows are not saved."""
    copies: int = 1
    """2 of a tied embedding that two stages hold; both reduce its gradient, the first saves it."""

    def held(self, tensor: int) -> int:
        """Elements on one of `tensor` ranks."""
        return self.size // tensor if self.divided else self.size


def stage_tensors(config: RunConfig, padded_vocabulary: int, wire: WirePlan, stage: int) -> list[ParameterTensor]:
    """The tensors of `stage`, each whole."""
    model, first, last = config.model, stage == 0, stage == wire.num_stages - 1
    copies = 2 if model.tie_embeddings and not (first and last) else 1
    table = ParameterTensor(padded_vocabulary * model.hidden_size, True, table=True, copies=copies)
    tensors = [table] if first or (last and model.tie_embeddings) else []
    start = wire.first_sublayer(stage)
    for sublayer in range(start, start + 2 * wire.layers_per_stage[stage]):
        tensors += [*_reader(config, wire, sublayer), ParameterTensor(model.hidden_size, False)]
        tensors += _mlp(model) if sublayer % 2 else _attention(model)
    if last:
        tensors += [*_reader(config, wire, wire.layout.num_sublayers), ParameterTensor(model.hidden_size, False)]
        tensors += [] if model.tie_embeddings else [table]
    return tensors


def _attention(model: ModelConfig) -> Iterator[ParameterTensor]:
    key_value = model.query_groups * model.head_size
    yield ParameterTensor(model.hidden_size**2, True)
    yield ParameterTensor(model.hidden_size * (model.hidden_size + 2 * key_value), True)
    if model.qk_norm:
        yield from [ParameterTensor(model.head_size, False)] * 2


def _mlp(model: ModelConfig) -> Iterator[ParameterTensor]:
    yield ParameterTensor(2 * model.ffn_hidden_size * model.hidden_size, True, pieces=2)
    yield ParameterTensor(model.ffn_hidden_size * model.hidden_size, True)


def _reader(config: RunConfig, wire: WirePlan, reader: int) -> list[ParameterTensor]:
    return [ParameterTensor(size, False, single=True) for size in reader_tensors(config, wire.layout, reader)]


def reader_tensors(config: RunConfig, layout: DepthLayout, reader: int) -> tuple[int, ...]:
    """Elements of each parameter of depth reader number `reader` of the model."""
    return _reader_sizes(config.residual, layout, config.model.hidden_size, config.model.norm_eps, reader)


@lru_cache(maxsize=4096)
def _reader_sizes(
    residual: ResidualConfig, layout: DepthLayout, width: int, eps: float, reader: int
) -> tuple[int, ...]:
    own = mode_of(residual, eps).parameters(layout.reads(reader), width, reader < layout.num_sublayers)
    return tuple(prod(initial.shape) for initial in own.values())
