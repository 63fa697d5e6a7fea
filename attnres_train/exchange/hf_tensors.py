"""Which tensors a Hugging Face folder has, and how each is made of the checkpoint's; pure index arithmetic.

Rotary positions turn entry i with entry i + K/2 of a head in both, so rows of queries and keys keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from attnres_train.model.config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

    from attnres_train.model.tensors import TensorSpec

_PLAIN = {
    "embedding.weight": "model.embed_tokens.weight",
    "head.norm.weight": "model.norm.weight",
    "head.projection.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attention.norm.weight": "input_layernorm.weight",
    "mlp.norm.weight": "post_attention_layernorm.weight",
    "attention.branch.linear_proj.weight": "self_attn.o_proj.weight",
    "attention.branch.linear_proj.bias": "self_attn.o_proj.bias",
    "attention.branch.q_layernorm.weight": "self_attn.q_norm.weight",
    "attention.branch.k_layernorm.weight": "self_attn.k_norm.weight",
    "mlp.branch.linear_fc2.weight": "mlp.down_proj.weight",
}


@dataclass(frozen=True)
class Target:
    """One tensor of the folder: its name, its shape, and how it is cut from the checkpoint's."""

    name: str
    shape: tuple[int, ...]
    view: Callable[[Tensor], Tensor]
    """Its elements in the checkpoint's tensor, in their order; perhaps in more dimensions."""
    fp32: bool = False
    """Whatever the others are."""

    def cut(self, whole: Tensor) -> Tensor:
        """The folder's tensor, from the checkpoint's."""
        return self.view(whole).reshape(self.shape)

    def put(self, whole: Tensor, tensor: Tensor) -> None:
        """Write the folder's tensor to its place in the checkpoint's; raises RuntimeError for another size."""
        place = self.view(whole)
        place.copy_(tensor.reshape(place.shape))


def targets(spec: TensorSpec, model: ModelConfig) -> tuple[Target, ...]:
    """What becomes of one tensor of the checkpoint. Raises KeyError for one that has no place in such a folder."""
    part, shape = spec.name, spec.shape
    if part in _PLAIN:
        return (Target(_PLAIN[part], shape, _as_it_is),)
    if part.startswith("head.depth."):
        return (Target(part.replace("head.depth.", "model.head_depth."), shape, _as_it_is, spec.fp32),)
    _, layer, inner = part.split(".", 2)
    path = f"model.layers.{layer}"
    if inner.startswith(("attention.depth.", "mlp.depth.")):
        return (Target(f"{path}.{inner.replace('.depth.', '_depth.')}", shape, _as_it_is, spec.fp32),)
    if inner.startswith("attention.branch.linear_qkv."):
        return tuple(_queries_keys_values(path, inner.rpartition(".")[2], shape[1:], model))
    if inner == "mlp.branch.linear_fc1.weight":
        half = (shape[0] // 2, *shape[1:])
        cuts = (("gate_proj", partial(_rows, first=0, last=half[0])), ("up_proj", partial(_rows, first=half[0])))
        return tuple(Target(f"{path}.mlp.{name}.weight", half, cut) for name, cut in cuts)
    return (Target(f"{path}.{_IN_LAYER[inner]}", shape, _as_it_is),)


def _queries_keys_values(path: str, kind: str, row: tuple[int, ...], model: ModelConfig) -> Iterator[Target]:
    """Rows of the stacked matrix, and of its bias, are by group: its queries, its key, its value, each the width of a
    head."""
    groups, width = model.query_groups, model.head_size
    queries = model.num_attention_heads // groups
    places = {"q_proj": (0, queries), "k_proj": (queries, queries + 1), "v_proj": (queries + 1, queries + 2)}
    for name, (first, last) in places.items():
        cut = partial(_of_groups, groups=groups, first=first * width, last=last * width)
        yield Target(f"{path}.self_attn.{name}.{kind}", (groups * (last - first) * width, *row), cut)


def _as_it_is(whole: Tensor) -> Tensor:
    return whole


def _rows(whole: Tensor, first: int, last: int | None = None) -> Tensor:
    return whole[first:last]


def _of_groups(whole: Tensor, groups: int, first: int, last: int) -> Tensor:
    return whole.unflatten(0, (groups, -1))[:, first:last]
