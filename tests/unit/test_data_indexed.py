"""The `.bin/.idx` pair: what goes in comes out, and a damaged pair is refused at open."""

from __future__ import annotations

import hashlib
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from attnres_train.data.indexed import IndexedReader, token_type
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.data.paths import bin_path, idx_path
from attnres_train.errors import Refused

DOCUMENTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [0, 0]]
TYPE_CODE_AT = 17
"""Place of the token type in the index."""


def write(prefix: Path, documents: list[list[int]] = DOCUMENTS, vocabulary_size: int = 1000) -> None:
    with IndexedWriter(prefix, vocabulary_size) as writer:
        for document in documents:
            writer.add_documents(np.array(document, dtype=np.int64), np.array([len(document)]))
        writer.finish()
        writer.publish()


def test_documents_and_the_stream_come_back_as_they_went_in(tmp_path: Path) -> None:
    write(tmp_path / "c")
    reader = IndexedReader(tmp_path / "c")
    assert reader.num_documents == 4
    assert [reader.document(i).tolist() for i in range(4)] == DOCUMENTS
    assert reader.window(2, 5).tolist() == [3, 4, 5, 6, 7]
    assert reader.window(0, reader.num_tokens).tolist() == [token for document in DOCUMENTS for token in document]


def test_a_pointer_in_the_place_of_an_index_is_told(tmp_path: Path) -> None:
    write(tmp_path / "c")
    idx_path(tmp_path / "c").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n")
    with pytest.raises(
        Refused, match="it is a Git LFS pointer, not the file it points to .get that with `git lfs pull`"
    ):
        IndexedReader(tmp_path / "c")


@pytest.mark.parametrize("start, count", [(-1, 2), (0, 12), (11, 1), (3, -1)])
def test_a_window_outside_the_stream_is_an_error(tmp_path: Path, start: int, count: int) -> None:
    write(tmp_path / "c")
    with pytest.raises(IndexError):
        IndexedReader(tmp_path / "c").window(start, count)


@pytest.mark.parametrize("vocabulary_size, width", [(1, 2), (65_535, 2), (65_536, 2), (65_537, 4), (119_547, 4)])
def test_the_largest_id_of_every_vocabulary_comes_back(tmp_path: Path, vocabulary_size: int, width: int) -> None:
    documents = [
        [0],
        [vocabulary_size - 1, 0],
        [min(1, vocabulary_size - 1), min(70_000, vocabulary_size - 1)],
    ]
    write(tmp_path / "c", documents, vocabulary_size)
    reader = IndexedReader(tmp_path / "c")
    assert reader.type.itemsize == width == token_type(vocabulary_size).itemsize
    assert [reader.document(i).tolist() for i in range(3)] == documents


@pytest.mark.parametrize("wrong", [65_536, 70_000, -1])
def test_an_id_outside_the_vocabulary_is_refused_naming_id_and_document(tmp_path: Path, wrong: int) -> None:
    with (
        pytest.raises(Refused, match=rf"document 3: holds id {wrong}, .* 65536"),
        IndexedWriter(tmp_path / "c", 65_536) as writer,
    ):
        writer.add_documents(np.array([1, 2]), np.array([2]))
        writer.add_documents(np.array([1, 2, 3, wrong, 5]), np.array([1, 2, 2]))
    assert list(tmp_path.iterdir()) == []


def test_the_facts_of_a_pair_are_those_of_its_files(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "c", 100) as writer:
        writer.add_documents(np.array([3, 7, 5]), np.array([1, 2]))
        facts = writer.finish()
        writer.publish(b"{}")
    assert (facts.token_type, facts.documents, facts.tokens, facts.largest_id) == ("uint16", 2, 3, 7)
    assert facts.bin_bytes == bin_path(tmp_path / "c").stat().st_size == 6
    assert facts.bin_sha256 == hashlib.sha256(bin_path(tmp_path / "c").read_bytes()).hexdigest()
    assert facts.idx_sha256 == hashlib.sha256(idx_path(tmp_path / "c").read_bytes()).hexdigest()
    assert (tmp_path / "c.json").read_bytes() == b"{}"


def test_a_long_index_written_and_checked_in_blocks_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnres_train.data.indexed.BLOCK", 7)
    monkeypatch.setattr("attnres_train.data.indexed_writer.BLOCK", 7)
    lengths = np.arange(50) % 5
    with IndexedWriter(tmp_path / "c", 1000) as writer:
        writer.add_documents(np.arange(lengths.sum()), lengths)
        writer.finish()
        writer.publish()
    reader = IndexedReader(tmp_path / "c")
    assert [len(reader.document(i)) for i in range(50)] == lengths.tolist()
    assert reader.document(48).tolist() == [lengths[:48].sum() + i for i in range(3)]


def test_opening_a_long_index_keeps_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million documents, 20 MB of index: neither its pages nor more than a few blocks stand in memory."""
    lengths = np.arange(1_000_000) % 3
    with IndexedWriter(tmp_path / "c", 1000) as writer:
        writer.add_documents(np.zeros(lengths.sum(), np.int16), lengths)
        writer.finish()
        writer.publish()
    monkeypatch.setattr("attnres_train.data.indexed.BLOCK", 1 << 14)
    tracemalloc.start()
    reader = IndexedReader(tmp_path / "c")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20
    assert resident_kib(idx_path(tmp_path / "c")) < 1024
    assert reader.num_documents == 1_000_000 and reader.num_tokens == lengths.sum()
    reader.lengths.sum()
    assert resident_kib(idx_path(tmp_path / "c")) > 3000, "what is looked at through a map is counted"


def resident_kib(path: Path) -> int:
    """What this process holds of the maps of `path`."""
    mappings = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    mine = [mapping for mapping in mappings if str(path) in mapping.splitlines()[0]]
    assert mine, "it is mapped"
    return sum(int(re.findall(r"^Rss: +(\d+) kB", mapping, re.MULTILINE)[0]) for mapping in mine)


def test_a_cut_token_file_is_refused_with_both_byte_counts(tmp_path: Path) -> None:
    write(tmp_path / "c")
    data = bin_path(tmp_path / "c").read_bytes()
    bin_path(tmp_path / "c").write_bytes(data[:-4])
    with pytest.raises(Refused, match="expected 22 bytes.*found 18"):
        IndexedReader(tmp_path / "c")


def test_a_cut_index_is_refused_with_both_byte_counts(tmp_path: Path) -> None:
    write(tmp_path / "c")
    data = idx_path(tmp_path / "c").read_bytes()
    idx_path(tmp_path / "c").write_bytes(data[:-8])
    with pytest.raises(Refused, match=rf"expected {len(data)} bytes.*found {len(data) - 8}"):
        IndexedReader(tmp_path / "c")


@pytest.mark.parametrize("code", [1, 4, 5, 6, 7, 9, 0])
def test_an_altered_token_width_is_refused(tmp_path: Path, code: int) -> None:
    write(tmp_path / "c")
    data = bytearray(idx_path(tmp_path / "c").read_bytes())
    assert data[TYPE_CODE_AT] == 8
    data[TYPE_CODE_AT] = code
    idx_path(tmp_path / "c").write_bytes(data)
    with pytest.raises(Refused):
        IndexedReader(tmp_path / "c")


@pytest.mark.parametrize("number", [1, 2])
def test_offsets_that_do_not_follow_from_the_lengths_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    write(tmp_path / "c")
    monkeypatch.setattr("attnres_train.data.indexed.BLOCK", 2)  # in a block, and from one to the next
    data = bytearray(idx_path(tmp_path / "c").read_bytes())
    offsets_at = 34 + 4 * len(DOCUMENTS)
    data[offsets_at + 8 * number] += 2
    idx_path(tmp_path / "c").write_bytes(data)
    with pytest.raises(Refused, match="offsets"):
        IndexedReader(tmp_path / "c")


@pytest.mark.parametrize("place, more", [(-8, -1), (-32, 2), (-40, 1)], ids=["too few", "shrink", "begin late"])
def test_bounds_that_do_not_cover_the_documents_are_refused(tmp_path: Path, place: int, more: int) -> None:
    write(tmp_path / "c")
    data = bytearray(idx_path(tmp_path / "c").read_bytes())
    data[place] += more
    idx_path(tmp_path / "c").write_bytes(data)
    with pytest.raises(Refused, match="bounds"):
        IndexedReader(tmp_path / "c")


def test_offsets_that_jump_where_a_block_begins_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third document, first of the second block, two bytes late: within the block all follow from the lengths."""
    monkeypatch.setattr("attnres_train.data.indexed.BLOCK", 2)
    write(tmp_path / "c")
    data = bytearray(idx_path(tmp_path / "c").read_bytes())
    offsets_at = 34 + 4 * len(DOCUMENTS)
    data[offsets_at + 16] += 2
    idx_path(tmp_path / "c").write_bytes(data)
    with pytest.raises(Refused, match="offsets"):
        IndexedReader(tmp_path / "c")


def test_bounds_that_go_back_on_their_way_to_the_end_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "c")
    data = bytearray(idx_path(tmp_path / "c").read_bytes())
    second, third = len(data) - 32, len(data) - 24
    assert (data[second], data[third]) == (1, 2)
    data[second], data[third] = 2, 1
    idx_path(tmp_path / "c").write_bytes(data)
    with pytest.raises(Refused, match="bounds"):
        IndexedReader(tmp_path / "c")


@pytest.mark.parametrize("content", [b"", b"MMIDIDX\x00\x00", b"x" * 100])
def test_a_file_that_is_no_index_is_refused(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / "c")
    idx_path(tmp_path / "c").write_bytes(content)
    with pytest.raises(Refused, match="header"):
        IndexedReader(tmp_path / "c")


def test_a_missing_half_is_named(tmp_path: Path) -> None:
    write(tmp_path / "c")
    idx_path(tmp_path / "c").unlink()
    with pytest.raises(Refused, match=r"c\.idx: is missing"):
        IndexedReader(tmp_path / "c")


def test_a_prefix_with_an_ending_is_refused_saying_so(tmp_path: Path) -> None:
    write(tmp_path / "c")
    with pytest.raises(Refused, match="without the ending"):
        IndexedReader(tmp_path / "c.bin")


def test_a_token_file_that_is_cut_while_it_is_open_is_refused_in_words(tmp_path: Path) -> None:
    """Through a map the same read would end the process by SIGBUS."""
    with IndexedWriter(tmp_path / "c", 320) as writer:
        writer.add_documents(np.arange(300), np.array([300]))
        writer.finish()
        writer.publish()
    reader = IndexedReader(tmp_path / "c")
    with open(tmp_path / "c.bin", "r+b") as file:
        file.truncate(200)
    assert reader.window(90, 10).tolist() == list(range(90, 100))
    with pytest.raises(Refused, match=r"c\.bin: ends at byte 200: it was cut after it was opened"):
        reader.window(95, 10)


def test_the_largest_id_is_that_of_all_documents_wherever_it_stands(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "c", 100) as writer:
        for ids in ([3, 70], [], [5]):
            writer.add_documents(np.array(ids, np.int64), np.array([len(ids)]))
        assert writer.finish().largest_id == 70
