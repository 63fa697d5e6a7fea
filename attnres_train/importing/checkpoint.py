"""A whole checkpoint of DeepSpeed's: where the run was, and the state of every parameter, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnres_train.engine.kinds import KINDS
from attnres_train.errors import Problem, Refused
from attnres_train.importing.files import Files, find_files, missing_and_extra
from attnres_train.importing.partitions import (
    Part,
    Shape,
    Shapes,
    partition_length,
    parts_of_groups,
    parts_of_parameters,
    uncovered,
)
from attnres_train.importing.plain_load import DAMAGED, load_plain
from attnres_train.importing.shards import NotAShard, Shard, read_shard

_PREFIX = "module."
_RECORDED = ("dp_world_size", "mp_world_size", "global_steps", "skipped_steps")


@dataclass(frozen=True)
class Position:
    """Where DeepSpeed says that the run was. `samples` None: it does not say."""

    steps: int
    skipped_steps: int
    samples: int | None


@dataclass(frozen=True)
class TensorRank:
    """What the data ranks of one tensor rank hold together; names without `module.`."""

    shapes: Mapping[str, Shape]
    parts: Mapping[str, Sequence[Part]]
    shards: Sequence[Shard]

    def pieces(self, name: str) -> Iterator[tuple[Part, str, Tensor]]:
        """Every part of the parameter: which, of which kind, and its elements as they lie in the file."""
        for part in self.parts[name]:
            for kind, flat in zip(KINDS, self.shards[part.rank].tensors[part.group], strict=True):
                yield part, kind.words, flat[part.inside]

    def tensor(self, name: str, kind: int) -> Tensor:
        """The fp32 tensor of this rank: a view of the file where one partition has all of it."""
        flats = [self.shards[part.rank].tensors[part.group][kind][part.inside] for part in self.parts[name]]
        whole = flats[0] if len(flats) == 1 else torch.cat(flats)
        return whole.view(self.shapes[name]).float()


@dataclass(frozen=True)
class ZeroCheckpoint:
    """A checkpoint whose files are all there and fit together."""

    folder: Path
    version: str
    stage: int
    data_ranks: int
    position: Position
    updates: int
    ranks: Sequence[TensorRank]
    """By tensor rank."""
    settings: Sequence[Mapping[str, Any]]
    """What the optimizer says of its parameter groups; may be empty."""

    @property
    def names(self) -> list[str]:
        return list(self.ranks[0].shapes)

    def not_finite(self) -> list[Problem]:
        """Reads everything once."""
        remedy = "name an older checkpoint with --tag: training from this one could only go wrong"
        found: dict[tuple[str, str], Problem] = {}
        for rank in self.ranks:
            for name in rank.shapes:
                for part, kind, piece in rank.pieces(name):
                    # Without a mask as large as the piece: its least and greatest tell.
                    if not all(bool(extreme.isfinite()) for extreme in piece.aminmax()):
                        message = f"its {kind} is not finite, in {rank.shards[part.rank].path}"
                        found.setdefault((name, kind), Problem(name, message, remedy))
        return list(found.values())


def read_checkpoint(folder: Path, tag: str | None) -> ZeroCheckpoint:
    """The checkpoint `tag` of `folder`, None for the newest. Every byte is held against its checksum.

    Raises Refused with everything that is wrong with its files.
    """
    files = find_files(folder, tag)
    problems: list[Problem] = []
    models = {rank: model for rank, path in files.model.items() if (model := _load(path, problems)) is not None}
    shards = {place: shard for place, path in files.optimizer.items() if (shard := _read(path, problems)) is not None}
    problems += _disagreements(files, models, shards)
    if problems:
        raise Refused(problems)
    tensor_ranks, data_ranks = len(models), len(shards) // len(models)
    ranks = [
        _tensor_rank(files.model[rank], models[rank], [shards[rank, data] for data in range(data_ranks)], problems)
        for rank in range(tensor_ranks)
    ]
    if problems:
        raise Refused(problems)
    first, of_first = models[0], shards[0, 0]
    samples = first.get("global_samples")
    position = Position(first["global_steps"], first["skipped_steps"], samples if isinstance(samples, int) else None)
    (updates,) = of_first.updates
    version = str(first.get("ds_version"))
    return ZeroCheckpoint(
        files.folder, version, of_first.stage, data_ranks, position, updates, ranks, of_first.settings
    )


def _load(path: Path, problems: list[Problem]) -> dict[str, Any] | None:
    try:
        loaded = load_plain(path)
    except Refused as refusal:
        problems += refusal.problems
        return None
    lacking = [key for key in _RECORDED if not isinstance(loaded.get(key), int)]
    lacking += [] if isinstance(loaded.get("param_shapes"), list) else ["param_shapes"]
    if lacking:
        what = f"does not say {', '.join(lacking)}: written without ZeRO, or by something else than DeepSpeed"
        problems.append(Problem(str(path), what, "import a checkpoint that DeepSpeed wrote under ZeRO-1, -2 or -3"))
    return None if lacking else loaded


def _read(path: Path, problems: list[Problem]) -> Shard | None:
    try:
        return read_shard(path, load_plain(path))
    except Refused as refusal:
        problems += refusal.problems
    except NotAShard as reason:
        problems.append(reason.about(path))
    return None


def _disagreements(
    files: Files, models: Mapping[int, Mapping[str, Any]], shards: Mapping[tuple[int, int], Shard]
) -> Iterator[Problem]:
    """What the files say of each other that is not so."""
    if 0 not in models:
        if 0 not in files.model:
            name = str(files.folder / "*mp_rank_00_model_states.pt")
            yield Problem(name, "is missing: it has the shapes and the position", DAMAGED)
        return
    first = models[0]
    data_ranks, tensor_ranks = first["dp_world_size"], first["mp_world_size"]
    yield from missing_and_extra(files, data_ranks, tensor_ranks)
    degrees = first.get("checkpoint_parallel_dimensions")
    pipeline = degrees.get("pp_degree") if isinstance(degrees, dict) else None
    if isinstance(pipeline, int) and pipeline > 1:
        remedy = "import a checkpoint of one pipeline stage"
        yield Problem(str(files.model[0]), f"is of {pipeline} pipeline stages, which is not supported", remedy)
    reference = None
    for place in sorted(shards):
        shard = shards[place]
        if shard.data_ranks != data_ranks:
            message = f"is of {shard.data_ranks} data ranks, {files.model[0].name} of {data_ranks}: of another save"
            yield Problem(str(shard.path), message, DAMAGED)
        if len(shard.updates) > 1:
            message = f"its groups saw different numbers of updates: {sorted(shard.updates)}"
            yield Problem(str(shard.path), message, "import a run that updates all parameters in every step")
            continue
        reference = reference or shard
        if (shard.stage, shard.updates) != (reference.stage, reference.updates):
            message = (
                f"is of ZeRO-{shard.stage} after {max(shard.updates)} updates, {reference.path.name} of "
                f"ZeRO-{reference.stage} after {max(reference.updates)}: of another save"
            )
            yield Problem(str(shard.path), message, DAMAGED)


def _tensor_rank(path: Path, model: Mapping[str, Any], shards: Sequence[Shard], problems: list[Problem]) -> TensorRank:
    """The parameters of one tensor rank; what does not fit together is added to `problems`."""
    groups = [{_plain(name): tuple(shape) for name, shape in group.items()} for group in model["param_shapes"]]
    for name in model.get("frozen_param_shapes") or ():
        message = f"{_plain(name)} was not trained: it has no master and no moments"
        problems.append(Problem(str(path), message, "train every parameter of the model"))
    if wrong := list(_wrong_groups(groups, shards)):
        problems += wrong
        return TensorRank({}, {}, shards)
    if shards[0].stage == 3:
        parts = parts_of_parameters(groups, len(shards))
    else:
        gaps = shards[0].gaps or [[0] * len(shapes) for shapes in groups]
        parts = parts_of_groups(groups, gaps, [[master.numel() for master, *_ in its.tensors] for its in shards])
    for name, (held, numel) in uncovered(groups, parts).items():
        message = f"the optimizer files have {held} of the {numel} elements of {name}"
        problems.append(Problem(str(path), message, DAMAGED))
    problems += _beyond(parts, shards)
    if shards[0].stage != 3:
        problems += _left_over(parts, shards)
    return TensorRank({name: shape for group in groups for name, shape in group.items()}, parts, shards)


def _wrong_groups(groups: Sequence[Shapes], shards: Sequence[Shard]) -> Iterator[Problem]:
    for shard in shards:
        if len(groups) != len(shard.tensors):
            message = f"has {len(shard.tensors)} groups of parameters, the model's file {len(groups)}"
            yield Problem(str(shard.path), message, DAMAGED)
        elif shard.stage == 3:
            for number, (shapes, (master, *_)) in enumerate(zip(groups, shard.tensors, strict=True)):
                if master.numel() != (length := partition_length(shapes, len(shards))):
                    message = f"has {master.numel()} elements of group {number}, the shapes make {length}"
                    yield Problem(str(shard.path), message, "import what was not offloaded to NVMe, and is whole")
        elif shard.gaps is not None and [len(its) for its in shard.gaps] != [len(shapes) for shapes in groups]:
            message = "has other numbers of parameters in its groups than the model's file"
            yield Problem(str(shard.path), message, DAMAGED)


def _beyond(parts: Mapping[str, Sequence[Part]], shards: Sequence[Shard]) -> Iterator[Problem]:
    """Parts that end behind the end of their partition."""
    for name, its in parts.items():
        for part in its:
            shard = shards[part.rank]
            for kind, flat in zip(KINDS, shard.tensors[part.group], strict=True):
                if part.inside.stop > (held := flat.numel()):
                    message = f"ends before the {kind.words} of {name} does: {held} elements in group {part.group}"
                    yield Problem(str(shard.path), message, DAMAGED)


def _left_over(parts: Mapping[str, Sequence[Part]], shards: Sequence[Shard]) -> Iterator[Problem]:
    """Partitions that hold more behind the last parameter than the padding that DeepSpeed adds."""
    for group in range(len(shards[0].tensors)):
        held = sum(shard.tensors[group][0].numel() for shard in shards)
        begins = [sum(shard.tensors[group][0].numel() for shard in shards[:rank]) for rank in range(len(shards))]
        used = max(
            (begins[p.rank] + p.inside.stop for its in parts.values() for p in its if p.group == group), default=0
        )
        if held - used >= 2 * len(shards):
            message = f"group {group} has {held} elements in the optimizer files, the shapes end at {used}"
            yield Problem(str(shards[0].path.parent), message, DAMAGED)


def _plain(name: str) -> str:
    """Without what a wrapper puts before the names of the model inside it."""
    while name.startswith(_PREFIX):
        name = name.removeprefix(_PREFIX)
    return name
