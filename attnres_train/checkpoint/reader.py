"""A published checkpoint, read tensor by tensor: without process group and megatron-core, whatever layout saved it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from attnres_train.checkpoint.manifest import Manifest, read_manifest
from attnres_train.checkpoint.metadata import SafeReader, read_metadata
from attnres_train.checkpoint.plain import NotPlain
from attnres_train.checkpoint.verify import damages
from attnres_train.errors import Problem, Refused, refuse

NOBODY_KNOWS = "do not use it: nobody knows what it would do"
ANOTHER = "use another checkpoint of the run"


class Part(NamedTuple):
    """One tensor of a checkpoint: of which kind of state, of which parameter of the whole model."""

    kind: str
    name: str
    tensor: Tensor
    """fp32, in host memory, without padding."""


@dataclass(frozen=True)
class CheckpointReader:
    """The tensors in the folder of one checkpoint: each is read when it is asked for, and none is kept."""

    folder: Path
    manifest: Manifest
    metadata: Metadata

    @classmethod
    def open(cls, folder: Path, *, verify: bool = True) -> CheckpointReader:
        """The checkpoint in `folder`; with `verify` every byte of it is held against its checksum first, else the sizes
        of its files alone.

        Raises Refused where it is none, or with what is wrong with its files. Loading runs no code.
        """
        manifest = read_manifest(folder)
        if wrong := damages(folder, manifest, sizes_only=not verify):
            raise Refused([Problem(str(folder), text, ANOTHER) for text in wrong])
        return cls(folder, manifest, described(folder, manifest))

    def parts(self) -> Iterator[Part]:
        """Everything that is stored, one tensor at a time, in the order of kinds and names."""
        for key in sorted(self.metadata.state_dict_metadata):
            kind, _, name = key.partition("/")
            yield Part(kind, name, self.read(kind, name))

    def read(self, kind: str, name: str) -> Tensor:
        """One tensor, put together from what every rank saved of it.

        Raises Refused where the checkpoint lacks it, or where its bytes are not plain tensors.
        """
        key = f"{kind}/{name}"
        stored = self.metadata.state_dict_metadata.get(key)
        if not isinstance(stored, TensorStorageMetadata):
            raise refuse(str(self.folder), f"has no {key}", ANOTHER)
        whole = torch.empty(stored.size, dtype=torch.float32)
        planner, reader = DefaultLoadPlanner(), SafeReader(self.folder, self.manifest.files)
        planner.set_up_planner({key: whole}, self.metadata, is_coordinator=True)
        reader.set_up_storage_reader(self.metadata, is_coordinator=True)
        plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
        try:
            reader.read_data(plan, planner).wait()
        except NotPlain as reason:
            raise refuse(str(self.folder), f"cannot be read: {reason}", ANOTHER) from reason
        return whole


def described(folder: Path, manifest: Manifest) -> Metadata:
    """What torch says of the tensors in `folder`, by keys such as `first_moment/head.norm.weight`. Raises Refused."""
    try:
        return read_metadata(folder, manifest.files)
    except UnpicklingError as error:
        raise refuse(str(folder), f"its metadata hold {error}", NOBODY_KNOWS) from error
    except Exception as error:  # damaged bytes can say anything
        raise refuse(str(folder), f"its metadata cannot be read: {error}", ANOTHER) from error
