"""The weights of a checkpoint in the stages of this rank, with no engine around them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from attnres_train.checkpoint.reader import CheckpointReader
from attnres_train.engine.kinds import kinds_of
from attnres_train.errors import Problem, Refused
from attnres_train.model.parameters import logical_parameters
from attnres_train.model.stage import StageModel
from attnres_train.parallel.grid import Grid


def open_on_all_ranks(checkpoint: Path, grid: Grid) -> CheckpointReader:
    """Rank 0 holds every byte against its checksum. A collective; raises Refused on every rank alike."""
    reader, mine = None, None
    try:
        reader = CheckpointReader.open(checkpoint, verify=grid.keeps_run)
    except Refused as refusal:
        mine = refusal.problems
    everybody: list[Sequence[Problem] | None] = [None] * grid.world_size
    dist.all_gather_object(everybody, mine, group=grid.control)
    problems = [problem for told in everybody if told is not None for problem in told]
    if problems or reader is None:
        raise Refused(list(dict.fromkeys(problems)))
    return reader


def read_into(stages: Sequence[StageModel], reader: CheckpointReader, grid: Grid) -> None:
    """Every parameter and buffer becomes that of the checkpoint, rounded to the dtype that it has here.

    Raises Refused where the checkpoint has no such tensor, or one of another shape.
    """
    with torch.no_grad():
        for logical in (parameter for stage in stages for parameter in logical_parameters(stage)):
            record = reader.manifest.tensors.get(logical.name)
            if record is None or tuple(record.shape) != logical.sharding.shape:
                shape = None if record is None else tuple(record.shape)
                what = f"has {logical.name} of shape {shape}, its settings say {logical.sharding.shape}"
                raise Refused(Problem(str(reader.folder), what, "use the version that saved it"))
            whole = reader.read(kinds_of(logical.spec)[0].stored, logical.name)
            logical.parameter.copy_(logical.sharding.cut(whole, grid.tensor_rank, grid.parallel.tensor))
