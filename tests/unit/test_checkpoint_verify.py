"""That checksums are those of what is on disk, and that damages are found and named."""

from __future__ import annotations

import errno
import io
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnres_train.checkpoint.checksum import ChecksumWriter, FileRecord, hexadecimal, record_of, written
from attnres_train.checkpoint.manifest import FILE_NAME, Manifest, read_manifest
from attnres_train.checkpoint.verify import damages, share_of, strangers
from tests.unit.checkpoint_folders import checkpoint, flip, manifest

SIZES = st.dictionaries(st.text("abcdef", min_size=1, max_size=6), st.integers(0, 10**12), max_size=30)


def expected_record(data: bytes) -> FileRecord:
    return FileRecord(len(data), f"{zlib.crc32(data):08x}")


def whole(tmp_path: Path) -> tuple[Path, Manifest]:
    folder = checkpoint(tmp_path / "step-00000010")
    return folder, read_manifest(folder)


def test_a_record_is_size_and_crc32(tmp_path: Path) -> None:
    for data in (b"", b"a", b"123456789", bytes((1 << 22) + 5)):
        (tmp_path / "file").write_bytes(data)
        assert record_of(tmp_path / "file") == expected_record(data)
    (tmp_path / "file").write_bytes(b"123456789")
    assert record_of(tmp_path / "file") == (9, "cbf43926"), "the check value of CRC-32"
    assert hexadecimal(1) == "00000001"


def test_what_cannot_be_read_has_no_record(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        record_of(tmp_path / "gone")
    with pytest.raises(IsADirectoryError):
        record_of(tmp_path)


def test_whole_files_have_no_damage(tmp_path: Path) -> None:
    folder, stated = whole(tmp_path)
    assert damages(folder, stated) == damages(folder, stated, sizes_only=True) == []
    assert damages(folder, stated, []) == damages(folder, manifest()) == []


@pytest.mark.parametrize("sizes_only", [False, True])
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda path: path.unlink(), "part is missing"),
        (lambda path: path.write_bytes(b""), "part has 0 bytes, the manifest says 7"),
        (lambda path: path.write_bytes(b"123456"), "part has 6 bytes, the manifest says 7"),
        (lambda path: path.write_bytes(b"12345678"), "part has 8 bytes, the manifest says 7"),
        (lambda path: (path.unlink(), path.symlink_to(path)), "part cannot be read: Too many levels"),
        (lambda path: (path.unlink(), path.symlink_to("nowhere")), "part is missing"),
    ],
    ids=["missing", "emptied", "cut", "grown", "a link to itself", "a link to nowhere"],
)
def test_damages_that_need_no_reading_are_found_either_way(
    damage: Callable[[Path], object], told: str, sizes_only: bool, tmp_path: Path
) -> None:
    folder, stated = whole(tmp_path)
    damage(folder / "part")
    (text,) = damages(folder, stated, sizes_only=sizes_only)
    assert text.startswith(told)
    assert damages(folder, stated, ["other"]) == []
    assert damages(folder, stated, ["other", "part"], sizes_only=sizes_only) == [text]


@pytest.mark.parametrize("bit", range(7 * 8))
def test_every_flipped_bit_is_found_by_reading(bit: int, tmp_path: Path) -> None:
    folder, stated = whole(tmp_path)
    flip(folder / "part", bit)
    (text,) = damages(folder, stated)
    found = expected_record((folder / "part").read_bytes()).crc32
    assert text == f"part has checksum {found}, the manifest says {expected_record(b'1234567').crc32}"
    assert damages(folder, stated, sizes_only=True) == []


def test_a_folder_in_the_place_of_a_file_is_a_damage_whatever_its_size(tmp_path: Path) -> None:
    folder, stated = whole(tmp_path)
    (folder / "part").unlink()
    (folder / "part").mkdir()
    (text,) = damages(folder, stated)
    assert text.startswith("part has ")
    size = (folder / "part").stat().st_size
    same_size = manifest(files={"part": FileRecord(size, "00000000")})
    assert damages(folder, same_size) == ["part cannot be read: Is a directory"]


def test_a_file_that_cannot_be_read_is_a_damage(tmp_path: Path) -> None:
    (tmp_path / "part").symlink_to("/proc/self/mem")  # opens, and fails at the first read
    stated = manifest(files={"part": FileRecord(0, "00000000")})
    assert damages(tmp_path, stated) == ["part cannot be read: Input/output error"]


def test_every_damage_is_told_in_the_order_of_the_manifest(tmp_path: Path) -> None:
    folder, stated = whole(tmp_path)
    (folder / "part").unlink()
    flip(folder / "other")
    part, other = damages(folder, stated)
    assert part == "part is missing" and other.startswith("other has checksum ")


def test_strangers_are_the_files_that_the_manifest_lacks(tmp_path: Path) -> None:
    folder, stated = whole(tmp_path)
    assert strangers(folder, stated) == []
    (folder / "below").mkdir()
    for name in ("zz", "below/core.1", ".hidden", "part.bak"):
        (folder / name).touch()
    (folder / "part").unlink()
    assert strangers(folder, stated) == [".hidden", "below/core.1", "part.bak", "zz"]
    assert FILE_NAME not in strangers(folder, manifest())


@given(SIZES, st.integers(1, 9))
def test_ranks_share_every_file_once_and_evenly(sizes: dict[str, int], ranks: int) -> None:
    stated = manifest(files={name: FileRecord(size, "00000000") for name, size in sizes.items()})
    shares = [share_of(stated, rank, ranks) for rank in range(ranks)]
    assert sorted(name for share in shares for name in share) == sorted(sizes)
    loads = [sum(sizes[name] for name in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0), "a rank could give a file to another"


def test_even_is_by_bytes_and_not_by_number() -> None:
    sizes = {"large": 100, **{f"small-{number}": 10 for number in range(10)}}
    stated = manifest(files={name: FileRecord(size, "00000000") for name, size in sizes.items()})
    assert share_of(stated, 0, 2) == ["large"] and len(share_of(stated, 1, 2)) == 10


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_a_written_file_has_the_record_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("written") / "file"
    with written(path) as file:
        for part in parts:
            assert file.write(part) == len(part)
        assert file.tell() == sum(map(len, parts))
    data = b"".join(parts)
    assert path.read_bytes() == data
    assert file.record == record_of(path) == expected_record(data)


def test_large_blocks_after_others_are_summed_on(tmp_path: Path) -> None:
    """Those that are summed while they are written; the next ones go on from them."""
    parts = [b"a" * 10, bytes(range(256)) * 5000, b"b" * 3, b"c" * (1 << 20)]
    with written(tmp_path / "file") as file:
        for part in parts:
            file.write(part)
    assert file.record == record_of(tmp_path / "file") == expected_record(b"".join(parts))


def test_all_that_torch_writes_passes_through_the_checksum(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(100_000.0), "empty": torch.zeros(0), "b": torch.ones(3, 3).T}
    with written(tmp_path / "file") as file:
        torch.save(tensors, file)  # type: ignore[arg-type]
        file.flush()
        assert file.writable() and file.fileno() > 2
    assert file.record == record_of(tmp_path / "file")
    loaded = torch.load(tmp_path / "file", weights_only=True)
    assert all(loaded[name].equal(tensor) for name, tensor in tensors.items())


class Slow(io.RawIOBase):
    """Takes at most three bytes a call, as the kernel takes at most 2 GiB."""

    def __init__(self) -> None:
        self.taken = b""

    def write(self, data) -> int:  # type: ignore[no-untyped-def, override]
        self.taken += bytes(data[:3])
        return min(3, len(data))


def test_a_write_that_the_kernel_takes_in_parts_is_completed() -> None:
    slow = Slow()
    writer = ChecksumWriter(slow)  # type: ignore[arg-type]
    assert writer.write(memoryview(b"1234567890")) == 10
    assert slow.taken == b"1234567890" and writer.record == expected_record(b"1234567890")


def test_a_writer_is_closed_before_its_file(tmp_path: Path) -> None:
    """Else Python 3.13 prints a traceback for every checkpoint."""
    with written(tmp_path / "file") as file:
        file.write(b"abc")
    assert file.closed and file.record == record_of(tmp_path / "file")


def write_and_say_something_else(file: ChecksumWriter) -> None:
    """What torch's zip writer does with a callback that fails, depending on where it is."""
    with suppress(OSError):
        file.write(b"x" * 100)
    raise RuntimeError("unexpected pos 64 vs 0")


@pytest.mark.parametrize(
    "write",
    [
        lambda file: file.write(b"x" * 100),
        lambda file: torch.save({"a": torch.zeros(10_000)}, file),
        write_and_say_something_else,
    ],
    ids=["bytes", "torch.save", "another exception"],
)
def test_a_full_disk_is_raised_as_the_os_error_that_it_was(write: Callable[[ChecksumWriter], object]) -> None:
    with pytest.raises(OSError, match="No space left") as failure, written(Path("/dev/full")) as file:
        write(file)
    assert failure.value.errno == errno.ENOSPC
    assert failure.value is file.failure


def test_another_failure_while_writing_stays_what_it_was(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not about the file"), written(tmp_path / "file") as file:
        file.write(b"1")
        raise ValueError("not about the file")
    assert file.failure is None
    with pytest.raises(FileNotFoundError), written(tmp_path / "gone/file"):
        raise AssertionError("opened")
