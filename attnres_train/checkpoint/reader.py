"""A published checkpoint, read tensor by tensor: without process group and megatron-core, whatever layout saved it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from pickle import UnpicklingError
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from attnres_train.checkpoint.manifest import Manifest, read_manifest
from attnres_train.checkpoint.metadata import read_metadata
from attnres_train.checkpoint.pieces import FP32_BYTES, PieceFiles, bytes_of
from attnres_train.checkpoint.plain import NotPlain
from attnres_train.checkpoint.read_sums import ReadSums
from attnres_train.checkpoint.runs import Run, runs
from attnres_train.checkpoint.verify import damages
from attnres_train.errors import Problem, Refused, refuse
from attnres_train.model.sharding import Sharding

NOBODY_KNOWS = "do not use it: nobody knows what it would do"
ANOTHER = "use another checkpoint of the run"


class Part(NamedTuple):
    """One tensor of a checkpoint: of which kind of state, of which parameter of the whole model."""

    kind: str
    name: str
    tensor: Tensor
    """fp32, in host memory, without padding."""


class CheckpointReader:
    """The tensors in the folder of one checkpoint: each is read when it is asked for, and none is kept."""

    def __init__(self, folder: Path, manifest: Manifest, metadata: Metadata):
        self.folder, self.manifest, self.metadata = folder, manifest, metadata
        self.files = PieceFiles(folder, manifest.files)

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
        stored = self.metadata.state_dict_metadata.get(f"{kind}/{name}")
        sizes = tuple(stored.size) if isinstance(stored, TensorStorageMetadata) else ()
        whole = torch.empty(sizes, dtype=torch.float32)
        try:
            with closing(self.files):
                self.fill(whole.view(-1), f"{kind}/{name}", Sharding(sizes), slice(0, whole.numel()))
        except NotPlain as reason:
            raise refuse(str(self.folder), f"cannot be read: {reason}", ANOTHER) from reason
        return whole

    def fill(
        self,
        into: Tensor,
        key: str,
        sharding: Sharding,
        wanted: slice,
        rank: int = 0,
        ranks: int = 1,
        sums: ReadSums | None = None,
    ) -> None:
        """The elements `wanted` of what tensor rank `rank` has of a tensor, in its flat form; padding becomes zero.

        Nothing else is read, and into host memory nothing twice: not even of a tensor that other ranks cut otherwise.
        What is read is added to `sums`, and by whoever reads its first element what surrounds a piece in its file.
        Raises OSError or NotPlain. Who asks closes `files`.
        """
        stored = self.metadata.state_dict_metadata.get(key)
        if not isinstance(stored, TensorStorageMetadata):
            raise NotPlain(f"has no {key}")
        if tuple(stored.size) != sharding.shape:
            raise NotPlain(f"{key} has shape {tuple(stored.size)} in the metadata, {sharding.shape} in the manifest")
        host = into if into.device.type == "cpu" else torch.empty(into.shape, dtype=torch.float32)
        host.zero_()
        missing = sum(run.length for run in runs(sharding, rank, ranks, wanted, [0] * len(stored.size), stored.size))
        for chunk in stored.chunks:
            if parts := list(runs(sharding, rank, ranks, wanted, chunk.offsets, chunk.sizes)):
                self._read(MetadataIndex(key, chunk.offsets), chunk.sizes, parts, host, sums)
                missing -= sum(run.length for run in parts)
        if missing:
            raise NotPlain(f"lacks {missing} elements of {key}")
        if host is not into:
            into.copy_(host)

    def _read(
        self, piece: MetadataIndex, sizes: Sequence[int], parts: Sequence[Run], host: Tensor, sums: ReadSums | None
    ) -> None:
        found = (self.metadata.storage_data or {}).get(piece)
        if found is None:
            raise NotPlain(f"the metadata do not say where {piece.fqn} lies")
        begin = self.files.begin(found.relative_path, found.offset, found.length, sizes)
        read: list[tuple[int, memoryview]] = []
        for here, there, length in sorted(parts, key=lambda run: run.there):
            place, elements = begin + FP32_BYTES * there, host[here : here + length]
            self.files.read(found.relative_path, place, elements)
            read.append((place, bytes_of(elements)))
        if sums is not None:
            sums.add(found.relative_path, read)
            if read[0][0] == begin:
                end, ends = begin + FP32_BYTES * math.prod(sizes), found.offset + found.length
                for stretch in ((found.offset, begin), (end, ends)):
                    for block in self.files.blocks(found.relative_path, *stretch):
                        sums.add(found.relative_path, [block])


def described(folder: Path, manifest: Manifest) -> Metadata:
    """What torch says of the tensors in `folder`, by keys such as `first_moment/head.norm.weight`. Raises Refused."""
    try:
        return read_metadata(folder, manifest.files)
    except UnpicklingError as error:
        raise refuse(str(folder), f"its metadata hold {error}", NOBODY_KNOWS) from error
    except Exception as error:  # damaged bytes can say anything
        raise refuse(str(folder), f"its metadata cannot be read: {error}", ANOTHER) from error
