"""Finished shards, in order, to one pair: tokens, metadata, and the account of skipped records."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from attnres_train.data.files import blocks_of
from attnres_train.data.indexed import LENGTH_TYPE
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.errors import refuse
from data_tools.bad_records import BadRecords, SkippedRecord
from data_tools.inputs import kind_of
from data_tools.pieces import Piece, Shard
from data_tools.streams import count_lines
from data_tools.work import ShardFacts, WorkFolder


class Assembly:
    """Appends shards to a pair; `counts`, `lost` and `without` sum what they counted."""

    def __init__(self, folder: WorkFolder, writer: IndexedWriter, bad: BadRecords, metadata: BinaryIO | None):
        self.folder = folder
        self.writer = writer
        self.bad = bad
        self.metadata = metadata
        self.counts: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.without: Counter[str] = Counter()
        self._records: dict[Path, int] = {}
        """Records of each file in the pieces that came before."""
        self._unreadable: set[Path] = set()

    def add(self, shard: Shard, key: str, facts: ShardFacts) -> None:
        """Append a finished shard, or say why it ended early.

        Raises Refused where the policy on bad records does, and for a shard that is not as it was written.
        """
        if facts.skipped:
            self._add_skipped(shard, key)
        self._add_tokens(key, facts)
        if self.metadata is not None:
            self._add_metadata(shard, key, self.metadata)
        for place, number in facts.blank:
            self.bad.add_blank(str(shard.pieces[place].path), self._before(shard.pieces[place]) + number)
        self.counts.update(facts.counts)
        self.lost.update(facts.lost)
        self.without.update(facts.without)
        for piece, records in zip(shard.pieces, facts.piece_records, strict=True):
            self._records[piece.path] = self._before(piece) + records

    def files_without_records(self) -> list[str]:
        """Of the files that were read the empty ones, whatever an archive needs for nothing."""
        return [str(path) for path, records in self._records.items() if not records and path not in self._unreadable]

    def _before(self, piece: Piece) -> int:
        """Records of the piece's file that come before the piece."""
        if piece.path not in self._records:
            # The pieces before it are in another part.
            self._records[piece.path] = count_before(piece)
        return self._records[piece.path]

    def _lines(self, shard: Shard, key: str, content: str) -> Iterator[tuple[Piece, int | None, str]]:
        """The lines of one of the shard's lists, each with the piece and the number of the record in its file."""
        with open(self.folder.file(key, content), encoding="utf-8", newline="\n") as lines:
            for line in lines:
                place, number, rest = line.rstrip("\n").split("\t", 2)
                piece = shard.pieces[int(place)]
                yield piece, self._before(piece) + int(number) if number else None, rest

    def _add_skipped(self, shard: Shard, key: str) -> None:
        for piece, number, rest in self._lines(shard, key, "skipped"):
            records, kind, reason = rest.split("\t", 2)
            self.bad.add(SkippedRecord(str(piece.path), number, kind, reason, int(records)))
            if number is None:
                self._unreadable.add(piece.path)

    def _add_metadata(self, shard: Shard, key: str, metadata: BinaryIO) -> None:
        for piece, number, fields in self._lines(shard, key, "metadata"):
            where = json.dumps({"file": str(piece.path), "line": number})
            metadata.write(f'{where[:-1]}, "metadata": {fields}}}\n'.encode())

    def _add_tokens(self, key: str, facts: ShardFacts) -> None:
        checksum = size = 0
        for block in blocks_of(self.folder.file(key, "bin")):
            self.writer.add_tokens(block)
            checksum, size = zlib.crc32(block, checksum), size + len(block)
        lengths = np.fromfile(self.folder.file(key, "lengths"), LENGTH_TYPE)
        self.writer.add_lengths(lengths, facts.largest_id)
        found = (checksum, size, lengths.size, int(lengths.sum(dtype=np.int64)))
        wanted = (facts.bin_crc32, facts.tokens * self.writer.type.itemsize, facts.documents, facts.tokens)
        if found != wanted:
            self.folder.forget(key)
            remedy = "run the same command again; check the disk"
            raise refuse(str(self.folder.file(key, "bin")), "is not as it was written, so it was removed", remedy)


def count_before(piece: Piece) -> int:
    """Lines or rows of the piece's file that come before the piece."""
    if not piece.start:
        return 0
    if kind_of(piece.path) == ".parquet":
        from data_tools.parquet import group_sizes

        return sum(rows for rows, _ in (group_sizes(piece.path) or ())[: piece.start])
    return count_lines(piece.path, piece.start)
