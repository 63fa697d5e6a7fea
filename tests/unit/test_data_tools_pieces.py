"""The plan of the work: every byte in one shard, in order, whatever the parts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnres_train.errors import Refused
from data_tools.pieces import LARGEST_SHARD_BYTES, MOST_PIECES, Cuttable, Piece, part_of, plan_shards
from data_tools.streams import count_lines

MIB = 1 << 20
SIZES = st.one_of(st.integers(1, 5000), st.integers(1, 40 * MIB), st.integers(1, 400 << 30))


@st.composite
def files(draw: st.DrawFn) -> list[Cuttable]:
    found = []
    for number in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["lines", "groups", "whole"]))
        groups = tuple(draw(st.lists(SIZES, min_size=1, max_size=6))) if kind == "groups" else None
        size = sum(groups) if groups else draw(SIZES)
        found.append(Cuttable(Path(f"{number}"), size, kind == "lines", groups))
    return found


def pieces_of(path: Path, pieces: list[Piece]) -> list[Piece]:
    return [piece for piece in pieces if piece.path == path]


@given(files())
def test_shards_hold_every_file_once_in_order_and_no_file_twice_in_a_shard(inputs: list[Cuttable]) -> None:
    shards = plan_shards(inputs)
    pieces = [piece for shard in shards for piece in shard.pieces]
    assert sum(piece.bytes for piece in pieces) == sum(file.bytes for file in inputs)
    assert list(dict.fromkeys(piece.path for piece in pieces)) == [file.path for file in inputs]
    for file in inputs:
        mine = pieces_of(file.path, pieces)
        if mine == [Piece(file.path, None, None, file.bytes)]:
            continue
        assert mine[0].start == 0 and mine[-1].end == (len(file.groups) if file.groups else file.bytes)
        assert all(a.end == b.start for a, b in zip(mine, mine[1:], strict=False))
    assert all(len({piece.path for piece in shard.pieces}) == len(shard.pieces) for shard in shards)
    # More than the target is only what cannot be cut.
    assert all(shard.bytes <= LARGEST_SHARD_BYTES or len(shard.pieces) == 1 for shard in shards)


@given(files(), st.data())
def test_parts_one_after_the_other_are_all_shards_and_none_is_empty(
    inputs: list[Cuttable], data: st.DataObject
) -> None:
    shards = plan_shards(inputs)
    of = data.draw(st.integers(1, min(9, len(shards))))
    parts = [part_of(shards, number, of) for number in range(1, of + 1)]
    assert all(parts) and [shard for part in parts for shard in part] == shards


def test_many_small_files_share_shards() -> None:
    shards = plan_shards([Cuttable(Path(str(i)), 100) for i in range(2500)])
    assert [len(shard.pieces) for shard in shards] == [MOST_PIECES, MOST_PIECES, 500]


def test_a_large_file_is_cut_evenly_and_parts_are_even() -> None:
    shards = plan_shards([Cuttable(Path("a"), 20 * MIB + 5, at_any_byte=True)])
    assert len(shards) == 21 and all(shard.bytes in (998643, 998644, 998645) for shard in shards), shards
    assert [len(part_of(shards, k, 2)) for k in (1, 2)] in ([10, 11], [11, 10])


def test_more_parts_than_shards_are_refused_for_every_part() -> None:
    shards = plan_shards([Cuttable(Path("a"), 100)])
    for number in (1, 2, 3):
        with pytest.raises(Refused, match="the inputs make 1 shards, too few for 3 parts"):
            part_of(shards, number, 3)


@given(st.lists(st.sampled_from([b"", b"a", b"ab", b"\r"]), max_size=12), st.integers(0, 40))
def test_lines_before_a_byte_are_those_that_begin_before_it(parts: list[bytes], end: int) -> None:
    content = b"\n".join(parts)
    end = min(end, len(content))
    starts = [0, *(i + 1 for i, byte in enumerate(content) if byte == 10)]
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        assert count_lines(Path(file.name), end) == sum(start < end for start in starts)
