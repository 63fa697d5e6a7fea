"""Safetensors files, one tensor after the other: no more than one is ever in memory.

A file is 8 bytes with the length of its header, the header, which is JSON and says where each tensor lies, and the
tensors themselves. All shapes are known before, so that the header is.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_STORED = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_BLOCK_ELEMENTS = 1 << 22
"""Converted and written at once: no tensor is ever there twice."""


@dataclass(frozen=True)
class Entry:
    """One tensor as it is to be stored."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def in_shards(entries: Sequence[Entry], shard_bytes: int) -> list[list[Entry]]:
    """Consecutive entries of at most `shard_bytes` together; a larger one is alone."""
    shards: list[list[Entry]] = [[]]
    for entry in entries:
        if shards[-1] and sum(other.bytes for other in shards[-1]) + entry.bytes > shard_bytes:
            shards.append([])
        shards[-1].append(entry)
    return shards


def shard_names(count: int) -> list[str]:
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def write_shards(folder: Path, shards: Sequence[Sequence[Entry]], tensors: Iterator[Tensor]) -> None:
    """Write all files and their index; `tensors` gives those of all shards in their order. Raises OSError."""
    names = shard_names(len(shards))
    for name, entries in zip(names, shards, strict=True):
        with open(folder / name, "xb", buffering=0) as file:
            _write_all(file.write, _header(entries))
            for entry in entries:
                _write_tensor(file.write, entry, next(tensors))
            os.fsync(file.fileno())
    where = {entry.name: name for name, entries in zip(names, shards, strict=True) for entry in entries}
    total = sum(entry.bytes for entries in shards for entry in entries)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _header(entries: Sequence[Entry]) -> bytes:
    fields: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for entry in entries:
        offsets = [begin, begin + entry.bytes]
        fields[entry.name] = {"dtype": _STORED[entry.dtype], "shape": list(entry.shape), "data_offsets": offsets}
        begin += entry.bytes
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _write_tensor(write: Callable[[memoryview], int], entry: Entry, tensor: Tensor) -> None:
    """Raises ValueError for another shape, and for a value that is finite and would not be in this dtype."""
    if tuple(tensor.shape) != entry.shape:
        raise ValueError(f"{entry.name} has shape {tuple(tensor.shape)}, {entry.shape} was announced")
    rows = tensor if tensor.dim() > 1 else tensor[None]
    step = max(1, _BLOCK_ELEMENTS // max(1, prod(rows.shape[1:])))
    for block in rows.split(step):
        stored = block.to(entry.dtype).contiguous()
        if entry.dtype == torch.float16 and bool((stored.isinf() & block.isfinite()).any()):
            raise ValueError(f"{entry.name} has values too large for fp16")
        _write_all(write, stored.view(-1).view(torch.uint8).numpy().data)


def _write_all(write: Callable[[memoryview], int], data: bytes | memoryview) -> None:
    left = memoryview(data).cast("B")
    while left:
        left = left[write(left) :]
