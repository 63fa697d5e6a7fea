"""Checksums of files from those of their parts, in whatever order and by whomever they were read."""

from __future__ import annotations

import zlib
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from attnres_train.checkpoint.checksum import FileRecord, hexadecimal
from attnres_train.checkpoint.crc import crc_of, moved, remainder, sum_of
from attnres_train.checkpoint.pieces import PieceFiles
from attnres_train.checkpoint.read_sums import ReadSums, Stretch, damage, dealt, unread

FILES = st.binary(max_size=300)


@given(FILES, st.lists(st.integers(0, 300), max_size=8), st.randoms(use_true_random=False))
def test_parts_in_any_order_and_hands_give_zlib_s_checksum(data: bytes, cuts: list[int], random: object) -> None:
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    parts = [(begin, memoryview(data)[begin:end]) for begin, end in zip(places, places[1:], strict=False)]
    hands: list[list[tuple[int, memoryview]]] = [[], [], []]
    for part in parts:
        hands[random.randrange(3)].append(part)  # type: ignore[attr-defined]
    total = 0
    for hand in hands:
        total ^= sum_of(hand, len(data))
    assert crc_of(total, len(data)) == zlib.crc32(data)


@given(FILES, st.integers(0, 5000))
def test_zeros_behind_are_a_power(data: bytes, zeros: int) -> None:
    assert moved(remainder(data), zeros) == remainder(data + bytes(zeros))


@given(st.binary(min_size=1, max_size=300), st.integers(0, 8 * 300 - 1))
def test_a_flipped_bit_is_seen(data: bytes, bit: int) -> None:
    bit %= 8 * len(data)
    wrong = bytearray(data)
    wrong[bit // 8] ^= 1 << bit % 8
    record = FileRecord(len(data), hexadecimal(zlib.crc32(data)))
    assert damage("a", record, remainder(data)) is None
    assert damage("a", record, remainder(wrong)) is not None


def metadata_of(pieces: dict[str, tuple[str, int, int]]) -> Metadata:
    class Place:
        def __init__(self, relative_path: str, offset: int, length: int):
            self.relative_path, self.offset, self.length = relative_path, offset, length

    places = {MetadataIndex(key, torch.Size([0])): Place(*place) for key, place in pieces.items()}
    return Metadata({}, storage_data=places)


def test_what_nobody_reads_is_dealt_out_once(tmp_path: Path) -> None:
    metadata = metadata_of({"a": ("x.distcp", 10, 20), "b": ("x.distcp", 30, 5), "c": ("x.distcp", 40, 10)})
    files = {"x.distcp": FileRecord(60, ""), "y.distcp": FileRecord(7, ""), "common.pt": FileRecord(9, "")}
    left = list(unread(metadata, files, {"a", "c"}))
    assert left == [
        Stretch("x.distcp", 0, 10), Stretch("x.distcp", 30, 40), Stretch("x.distcp", 50, 60), Stretch("y.distcp", 0, 7),
    ]  # fmt: skip
    large = [*left, Stretch("z.distcp", 3, 3 + (10 << 20))]
    shares = [list(dealt(large, rank, 3)) for rank in range(3)]
    pieces = sorted(piece for share in shares for piece in share)
    assert sum(piece.end - piece.begin for piece in pieces) == sum(stretch.end - stretch.begin for stretch in large)
    assert all(one.file != two.file or one.end <= two.begin for one, two in zip(pieces, pieces[1:], strict=False))
    bytes_of_ranks = [sum(piece.end - piece.begin for piece in share) for share in shares]
    assert max(bytes_of_ranks) - min(bytes_of_ranks) <= 4 << 20, "a block"


def test_a_file_that_ends_early_is_counted_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "x.distcp").write_bytes(b"0123456789")
    sums, files = ReadSums({"x.distcp": FileRecord(20, "")}), PieceFiles(tmp_path, ["x.distcp"])
    for block in files.blocks("x.distcp", 4, 15):
        sums.add("x.distcp", [block])
    assert sums.counts["x.distcp"] == 6
    assert list(files.blocks("x.distcp", 12, 15)) == []
    files.close()
