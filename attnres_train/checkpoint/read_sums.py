"""What a load has read of a checkpoint, summed on the way: whether its files are whole is known without reading twice.

Each rank reads its own part of the state and adds up, file by file, the checksums of what it read, as if all else were
zero. Parts that several ranks read (what tensor ranks have copies of) are counted by one of them. What nobody needs,
such as the tensors of another optimizer, is dealt out to all ranks. The sums of all ranks together are the file's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torch.distributed.checkpoint.metadata import Metadata

from attnres_train.checkpoint.checksum import FileRecord, hexadecimal
from attnres_train.checkpoint.crc import crc_of, sum_of

STATE_SUFFIX = ".distcp"
"""Of the files that hold tensors; the others are small."""
_BLOCK_BYTES = 4 << 20


class Stretch(NamedTuple):
    """Bytes `begin` to `end` of a file."""

    file: str
    begin: int
    end: int


class ReadSums:
    """Of one rank: by file the sum of what it has read, and of how many bytes."""

    def __init__(self, files: Mapping[str, FileRecord]):
        self.files = files
        self.sums, self.counts = Counter[str](), Counter[str]()

    def add(self, file: str, parts: Sequence[tuple[int, memoryview]]) -> None:
        """Bytes of `file` at their places: ascending, and none that was added before, here or on another rank."""
        self.sums[file] ^= sum_of(parts, self.files[file].bytes)
        self.counts[file] += sum(len(data) for _, data in parts)


def state_files(files: Iterable[str]) -> list[str]:
    """Those that hold tensors, in an order that is the same everywhere."""
    return sorted(name for name in files if name.endswith(STATE_SUFFIX))


def unread(metadata: Metadata, files: Mapping[str, FileRecord], keys: Collection[str]) -> Iterator[Stretch]:
    """What is left of the files of state where every piece of the tensors `keys` is read, with its whole archive."""
    read: dict[str, list[tuple[int, int]]] = {}
    for index, found in (metadata.storage_data or {}).items():
        if index.fqn in keys:
            read.setdefault(found.relative_path, []).append((found.offset, found.offset + found.length))
    for name in state_files(files):
        at = 0
        for begin, end in [*sorted(read.get(name, [])), (files[name].bytes, files[name].bytes)]:
            if begin > at:
                yield Stretch(name, at, begin)
            at = max(at, end)


def dealt(stretches: Iterable[Stretch], rank: int, ranks: int) -> Iterator[Stretch]:
    """The share of one rank, in pieces of a block; all ranks together have each byte once, and about as many each,
    however short the stretches are."""
    before_bytes = 0
    for file, begin, end in stretches:
        for start in range(begin, end, _BLOCK_BYTES):
            piece = Stretch(file, start, min(start + _BLOCK_BYTES, end))
            if before_bytes // _BLOCK_BYTES % ranks == rank:
                yield piece
            before_bytes += piece.end - piece.begin


def damage(name: str, record: FileRecord, read_sum: int) -> str | None:
    """What is wrong with a file of which all ranks together have summed every byte once."""
    found = hexadecimal(crc_of(read_sum, record.bytes))
    return None if found == record.crc32 else f"{name} has checksum {found}, the manifest says {record.crc32}"
