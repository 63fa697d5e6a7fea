"""The model as a value, without torch: every tensor of it, whatever the layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from attnres_train.depth.config import ResidualConfig
from attnres_train.depth.layout import DepthLayout
from attnres_train.depth.modes.choose import mode_of
from attnres_train.model.branches.choose import branches_of
from attnres_train.model.config import ModelConfig
from attnres_train.model.sharding import Sharding
from attnres_train.model.tensors import TensorSpec


@dataclass(frozen=True)
class Description:
    """Tensors by part, in the order in which a stage's module holds them; buffers stand anywhere in their layer."""

    embedding: tuple[TensorSpec, ...]
    layers: tuple[tuple[TensorSpec, ...], ...]
    """Of every transformer layer: attention, then MLP; of each its reader, its norm, its branch."""
    head: tuple[TensorSpec, ...]
    """The output projection is among them only if it is not the embedding."""
    tied: bool

    @cached_property
    def all(self) -> tuple[TensorSpec, ...]:
        """Every tensor of the model, once."""
        return self.stage(range(len(self.layers)), first=True, last=True)

    @cached_property
    def parameters(self) -> int:
        """Of the whole model, padded rows included."""
        return sum(spec.size for spec in self.all)

    def stage(self, layers: range, first: bool, last: bool) -> tuple[TensorSpec, ...]:
        """The parameters of one pipeline stage, in their order; a tied embedding lies on both ends."""
        table: tuple[TensorSpec, ...] = ()
        if first or (last and self.tied):
            copies = 2 if self.tied and not (first and last) else 1
            table = tuple(replace(spec, copies=copies, owned=first) for spec in self.embedding)
        inner = tuple(spec for layer in layers for spec in self.layers[layer] if not spec.buffer)
        return (*table, *inner, *(self.head if last else ()))

    def buffers(self, layers: range) -> tuple[TensorSpec, ...]:
        """What is saved with `layers` beside their parameters."""
        return tuple(spec for layer in layers for spec in self.layers[layer] if spec.buffer)


@lru_cache(maxsize=64)
def describe(model: ModelConfig, residual: ResidualConfig, vocabulary_size: int, padded_vocabulary: int) -> Description:
    """The model of two checked sections, for a vocabulary that a layout pads to `padded_vocabulary` rows."""
    table = Sharding((vocabulary_size, model.hidden_size), axis=0, padded=padded_vocabulary)
    projection = TensorSpec("head.projection.weight", table, True, std=model.init_std)
    return Description(
        embedding=(TensorSpec("embedding.weight", table, True, std=model.init_std),),
        layers=tuple(_layer(model, residual, layer) for layer in range(model.num_layers)),
        head=(
            *_before_branch(model, residual, model.num_sublayers, "head"),
            *(() if model.tie_embeddings else (projection,)),
        ),
        tied=model.tie_embeddings,
    )


def _layer(model: ModelConfig, residual: ResidualConfig, layer: int) -> tuple[TensorSpec, ...]:
    tensors: list[TensorSpec] = []
    for index, branch in enumerate(branches_of(model, layer)):
        path = f"layers.{layer}.{branch.name}"
        tensors += _before_branch(model, residual, 2 * layer + index, path)
        tensors += [replace(spec, name=f"{path}.branch.{spec.name}") for spec in branch.tensors()]
    return tuple(tensors)


def _before_branch(model: ModelConfig, residual: ResidualConfig, reader: int, path: str) -> list[TensorSpec]:
    """The tensors of depth reader number `reader`, and of the norm behind it."""
    reads = DepthLayout.of(residual, model.num_layers).reads(reader)
    own = mode_of(residual, model.norm_eps).parameters(reads, model.hidden_size, reader < model.num_sublayers)
    depth = [
        TensorSpec(f"{path}.depth.{name}", Sharding(i.shape), i.decays, i.value, i.std, fp32=True)
        for name, i in own.items()
    ]
    return [*depth, TensorSpec(f"{path}.norm.weight", Sharding((model.hidden_size,)), False, value=1.0)]
