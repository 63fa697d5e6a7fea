"""The logical tensors of a model, from those of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from attnres_train.errors import Problem, Refused
from attnres_train.exchange.hf_folder import Folder
from attnres_train.exchange.hf_tensors import Target, targets
from attnres_train.model.config import ModelConfig
from attnres_train.model.parameters import draw
from attnres_train.model.tensors import TensorSpec

_SHOWN = 5
_TABLE, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_OTHER = "import a folder whose config.json is that of its weights"

Plan = Sequence[tuple[TensorSpec, tuple[Target, ...]]]


def plan_of(described: Sequence[TensorSpec], model: ModelConfig) -> Plan:
    """What every tensor of ours is made of."""
    return [(spec, targets(spec, model)) for spec in described]


def check_tensors(folder: Folder, plan: Plan, model: ModelConfig, depth_too: bool) -> None:
    """Raises Refused where the folder lacks a tensor, has one too many, or one of another shape.

    Without `depth_too` the folder's model has the standard residual, and depth readers start anew.
    """
    wanted = {t.name: t.shape for spec, made in plan if depth_too or not is_depth(spec) for t in made}
    found = {name: stored.shape for name, stored in folder.tensors.items()}
    problems = list(_tied(folder, found, model))
    if model.tie_embeddings:
        found.pop(_HEAD, None)
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    other = sorted(name for name in wanted.keys() & found.keys() if wanted[name] != found[name])
    where = str(folder.path)
    problems += [Problem(f"{where}: {name}", "config.json asks for it, no file has it", _OTHER) for name in missing]
    problems += [
        Problem(f"{where}: {name}", "a file has it, config.json does not ask for it: another model", _OTHER)
        for name in extra
    ]
    problems += [
        Problem(f"{where}: {name}", f"has shape {found[name]}, config.json says {wanted[name]}", _OTHER)
        for name in other
    ]
    if len(problems) > _SHOWN:
        more = Problem(f"{len(problems) - _SHOWN} more", "likewise", _OTHER)
        problems = [*problems[:_SHOWN], more]
    if problems:
        raise Refused(problems)


def _tied(folder: Folder, found: Mapping[str, tuple[int, ...]], model: ModelConfig) -> Iterator[Problem]:
    """Whether tie_word_embeddings says what the files say."""
    key = f"{folder.path}: {_HEAD}"
    if not model.tie_embeddings and _HEAD not in found and _TABLE in found:
        what = "is in no file, but tie_word_embeddings is not true: it would start at random numbers"
        yield Problem(key, what, "correct config.json, or copy the missing file")
    if model.tie_embeddings and _HEAD in found and _TABLE in found:
        same = found[_HEAD] == found[_TABLE] and folder.read(_HEAD).equal(folder.read(_TABLE))
        if not same:
            what = f"is another than {_TABLE}, but tie_word_embeddings is true: one of the two would be lost"
            yield Problem(key, what, "set tie_word_embeddings to false in config.json")


def is_depth(spec: TensorSpec) -> bool:
    """Whether it belongs to a depth reader."""
    return ".depth." in spec.name


def logical_tensor(folder: Folder, spec: TensorSpec, made: Sequence[Target], seed: int) -> Tensor:
    """The tensor of ours, fp32: from the folder, or of a depth reader that it lacks, as a new model starts.

    Raises Refused where a value is not finite.
    """
    if is_depth(spec) and made[0].name not in folder.tensors:
        return draw(spec, seed)
    whole = torch.empty(spec.shape, dtype=torch.float32)
    for target in made:
        tensor = folder.read(target.name)
        if not all(bool(extreme.isfinite()) for extreme in tensor.aminmax()):
            stored = folder.tensors[target.name]
            raise Refused(Problem(str(stored.file), f"{target.name} has values that are not finite", _OTHER))
        target.put(whole, tensor)
    return whole
