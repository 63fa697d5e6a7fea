"""Finished shards on their way into a pair: what is not as it was written never gets there."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnres_train.errors import Refused
from data_tools.assemble import Assembly
from data_tools.pieces import Piece, Shard
from data_tools.work import CONTENTS, ShardFacts, WorkFolder

TOKENS = np.arange(6, dtype="<u2")


def piece(start: int, end: int, name: str = "a.jsonl") -> Piece:
    return Piece(Path(name), start, end, end - start, start)


class Writer:
    """Of a pair, that keeps nothing."""

    type = np.dtype("<u2")

    def add_tokens(self, _tokens: Any) -> None: ...

    def add_lengths(self, _lengths: Any, _largest_id: int | None) -> None: ...


class Bad:
    """The account of places without text."""

    def __init__(self) -> None:
        self.blank: list[tuple[str, int]] = []

    def add_blank(self, path: str, number: int) -> None:
        self.blank.append((path, number))


def finished(folder: WorkFolder, shard: Shard, **more: Any) -> tuple[str, ShardFacts]:
    """Two documents of three tokens."""
    key = folder.key(shard)
    contents = {"bin": TOKENS.tobytes(), "lengths": np.array([3, 3], "<i4").tobytes(), "metadata": b"", "skipped": b""}
    for content in CONTENTS:
        folder.aside(key, content).write_bytes(contents[content])
    facts = ShardFacts(documents=2, tokens=6, largest_id=5, bin_crc32=zlib.crc32(TOKENS.tobytes()), counts={}, **more)
    folder.finish(key, facts)
    return key, facts


@pytest.fixture
def folder(tmp_path: Path) -> WorkFolder:
    made = WorkFolder(tmp_path / "pair", {})
    made.open()
    return made


def test_a_flipped_bit_of_a_shard_is_refused_and_the_shard_goes(folder: WorkFolder) -> None:
    shard = Shard((piece(0, 10),))
    key, facts = finished(folder, shard, piece_records=(2,))
    path = folder.file(key, "bin")
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(bytes(data))
    writer: Any = Writer()
    bad: Any = Bad()
    with pytest.raises(Refused, match="not as it was written"):
        Assembly(folder, writer, bad, None).add(shard, key, facts)
    assert folder.facts(key) is None and not path.exists()


@pytest.mark.parametrize("content", CONTENTS)
def test_a_shard_that_lacks_a_list_is_not_finished(content: str, folder: WorkFolder) -> None:
    key, facts = finished(folder, Shard((piece(0, 10),)), piece_records=(2,))
    assert folder.facts(key) == facts
    folder.file(key, content).unlink()
    assert folder.facts(key) is None


def test_records_are_numbered_through_all_pieces_of_a_file(folder: WorkFolder) -> None:
    writer: Any = Writer()
    bad: Any = Bad()
    assembly = Assembly(folder, writer, bad, None)
    for start in (0, 10, 20):
        shard = Shard((piece(start, start + 10),))
        key, facts = finished(folder, shard, piece_records=(4,), blank=((0, 2),))
        assembly.add(shard, key, facts)
    assert bad.blank == [("a.jsonl", 2), ("a.jsonl", 6), ("a.jsonl", 10)]


def test_row_groups_begin_where_the_ones_before_them_end() -> None:
    from data_tools.pieces import MIB, Cuttable, plan_shards

    sizes = tuple([MIB] * 5)
    shards = plan_shards([Cuttable(Path("a.parquet"), sum(sizes), groups=sizes)])
    offsets = [piece.offset for shard in shards for piece in shard.pieces]
    assert offsets == [number * MIB for number in range(len(offsets))] and len(offsets) == 5


def test_parts_that_were_cut_elsewhere_have_another_plan() -> None:
    from types import SimpleNamespace

    from data_tools.task import _fingerprint

    inputs: Any = SimpleNamespace(files=(Path("a.jsonl"),))
    one = [Shard((piece(0, 10), piece(10, 20)))]
    other = [Shard((piece(0, 10), piece(20, 30)))]
    assert _fingerprint(inputs, one) != _fingerprint(inputs, other)
    assert _fingerprint(inputs, one) == _fingerprint(inputs, list(one))
