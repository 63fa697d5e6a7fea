"""A checkpoint written by a plain process, tensor by tensor, in the format in which `sharded.py` writes a run's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from attnres_train.checkpoint.checksum import FileRecord, written
from attnres_train.checkpoint.sharded import CheckedWriter, finish, without_checksums_of_torchs_own

_FILE = "__0_0.distcp"
"""As torch calls the first file of the first rank."""


class Whole(NamedTuple):
    """A whole tensor, fp32, in host memory; `key` as in `weight/head.norm.weight`."""

    key: str
    tensor: Tensor


def write_whole(folder: Path, tensors: Iterable[Whole]) -> dict[str, FileRecord]:
    """Write and flush `tensors` into the empty `folder`, none of them kept; returns the files. Raises OSError."""
    writer = CheckedWriter(folder)
    writer.set_up_storage_writer(True, rank=0, use_collectives=True)
    stored: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    results: list[WriteResult] = []
    with written(folder / _FILE) as stream, without_checksums_of_torchs_own():
        for key, tensor in tensors:
            begin = stream.tell()
            torch.save(tensor, stream)  # type: ignore[arg-type]
            length = stream.tell() - begin
            start = torch.Size([0] * tensor.dim())
            chunk = ChunkStorageMetadata(offsets=start, sizes=tensor.size())
            properties = TensorProperties.create_from_tensor(tensor)
            stored[key] = TensorStorageMetadata(properties, tensor.size(), [chunk])
            results.append(WriteResult(MetadataIndex(key, start), length, _StorageInfo(_FILE, begin, length)))
        os.fsync(stream.fileno())
    return {_FILE: stream.record, **finish(writer, Metadata(stored), [results])}
