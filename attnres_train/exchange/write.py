"""What was imported into a run folder, by the same transaction as every save of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from attnres_train.checkpoint.folder import checkpoints_folder, named_steps
from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.checkpoint.space import check_space
from attnres_train.config.run_config import RunConfig
from attnres_train.engine.interface import StatePart, StateSource
from attnres_train.engine.kinds import Kind, kinds_of
from attnres_train.errors import refuse
from attnres_train.exchange.checkpoint import ZeroCheckpoint
from attnres_train.exchange.fit import whole_state
from attnres_train.model.parameters import LogicalParameter
from attnres_train.model.sharding import Sharding
from attnres_train.model.tensors import TensorSpec
from attnres_train.parallel.config import ParallelConfig
from attnres_train.parallel.device import hide_gpus
from attnres_train.parallel.grid import build_grid, start_process_group, stop_process_group
from attnres_train.progress import TrainState


@dataclass(frozen=True)
class ImportedState:
    """What a save asks of an engine, answered from the files of DeepSpeed's.

    Tensors that lie in one piece there are mapped, not copied: all others are in memory at once while they are
    written, under ZeRO-3 and with several tensor ranks the whole state, 12 bytes a parameter.
    """

    checkpoint: ZeroCheckpoint
    model: Sequence[TensorSpec]
    """Padded and cut for the tensor ranks of the checkpoint."""

    @property
    def updates(self) -> int:
        return self.checkpoint.updates

    def kinds(self, spec: TensorSpec) -> tuple[Kind, ...]:
        return kinds_of(spec)

    def parameters(self) -> Sequence[LogicalParameter]:
        """Each in one piece, without padding."""
        whole = [replace(spec, sharding=Sharding(spec.shape)) for spec in self.model]
        values = [torch.empty(spec.shape, device="meta") for spec in whole]
        return [LogicalParameter(spec, value, value.shape) for spec, value in zip(whole, values, strict=True)]

    def share(self) -> Iterator[StatePart]:
        for spec, logical in zip(self.model, self.parameters(), strict=True):
            for kind, tensor in whole_state(self.checkpoint, spec.name, spec.sharding):
                yield StatePart(kind, logical, slice(0, logical.numel), tensor)


def refuse_a_later_one(run_folder: Path, step: int) -> None:
    """Raises Refused where the run folder has come as far already: the next resume would choose between two runs."""
    later = [path for other, path in named_steps(checkpoints_folder(run_folder)).items() if other >= step]
    if later:
        message = f"has {later[-1]} already, at or after step {step} which is to be imported"
        remedy = "choose a folder without checkpoints: --training.run_folder FOLDER"
        raise refuse("training.run_folder", message, remedy)


def write_imported(
    folder: Path, imported: StateSource, config: RunConfig, state: TrainState, identity: RunIdentity
) -> Path:
    """Write, read back and publish the checkpoint of `state` in the run folder; older ones stay.

    Raises Refused where there is no room, RuntimeError where writing fails; then nothing is published.
    """
    hide_gpus(config.parallel.device, os.environ)
    start_process_group(config.parallel.timeout_seconds)
    try:
        grid = build_grid(ParallelConfig(), config.training.seed)
        check_space(checkpoints_folder(folder), imported, grid)
        save = CheckpointSave.start(folder, imported, grid, state, identity)
        save.wait()
        published = save.publish()
        save.retire(keep=None)
        return published
    finally:
        stop_process_group()
