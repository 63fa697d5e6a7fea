"""Which files are read, and which requests are refused before any work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attnres_train.data.files import sha256_of_file
from attnres_train.data.manifest import SourceFile
from attnres_train.errors import Refused
from data_tools.inputs import compression_of, find_inputs, kind_of
from data_tools.pieces import Piece
from data_tools.sources import SourceDigests, digest_of, same_sources


def make(folder: Path, *names: str) -> list[Path]:
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'{"text": "words"}\n')
    return paths


def test_arguments_keep_their_order_and_folders_and_patterns_are_sorted(tmp_path: Path) -> None:
    b, a = make(tmp_path / "folder", "sub/b.txt.gz", "a.jsonl")
    z, y = make(tmp_path, "z.jsonl.xz", "y.jsonl.bz2")
    first = make(tmp_path, "first.txt")
    inputs = find_inputs([str(first[0]), str(tmp_path / "?.jsonl.*"), str(tmp_path / "folder")])
    assert inputs.files == (first[0], y, z, a, b)
    assert inputs.ignored == ()


def test_files_of_unknown_kind_in_a_folder_are_left_out_and_reported(tmp_path: Path) -> None:
    *others, known = make(tmp_path, ".cache/x.jsonl", ".hidden.jsonl", "b.jsonl.lz4", "a.jsonl")
    inputs = find_inputs([str(tmp_path)])
    assert (inputs.files, inputs.ignored) == ((known,), tuple(others))


def test_lines_of_json_under_their_other_names_are_read_where_they_are_named(tmp_path: Path) -> None:
    """allenai/dolma#272: `.json.gz` is what C4 and Dolma ship. In a folder `train.skipped.ndjson` is our own list."""
    data, described, listed = make(tmp_path, "c4.json.gz", "state.json", "train.skipped.ndjson")
    (lines,) = make(tmp_path, "a.jsonl")
    assert find_inputs([str(tmp_path)]).files == (lines,)
    assert find_inputs([str(tmp_path / "*.json.gz"), str(listed)]).files == (data, listed)
    assert {kind_of(path) for path in (data, described, listed)} == {".jsonl"}


def test_what_writers_keep_for_themselves_is_left_out_of_folders_and_told(tmp_path: Path) -> None:
    others = make(tmp_path / "out", "._SUCCESS.crc", "_SUCCESS", "_delta_log/0.checkpoint.parquet")
    others += make(tmp_path / "out", "_metadata.parquet", "_temporary/0/part-0.parquet", "b/.part-1.jsonl.gz")
    # A partition by a column whose name begins with the sign is one all the same.
    wanted = make(tmp_path / "out", "_day=1/_hour=2/part-0.parquet", "b/part-1.jsonl.gz", "part-0.parquet")
    assert find_inputs([str(tmp_path / "out")]).files == tuple(wanted)
    assert find_inputs([str(tmp_path / "out")]).ignored == tuple(others)
    for pattern in ("out/**/*.*", "out/*"):
        inputs = find_inputs([str(tmp_path / pattern)])
        assert sorted(inputs.files) == sorted(wanted), pattern
        assert tmp_path / "out/_temporary/0/part-0.parquet" in inputs.ignored
    # Named outright, or by a pattern that says so, they are read.
    for named in ("out/_temporary", "out/_temporary/0/*.parquet", "out/_t*/*/part-0.parquet"):
        assert find_inputs([str(tmp_path / named)]).files == (tmp_path / "out/_temporary/0/part-0.parquet",)
    assert find_inputs([str(others[3])]).files == (others[3],)
    make(tmp_path, "e/_a.txt")
    with pytest.raises(Refused, match="besides those whose names begin with _ or"):
        find_inputs([str(tmp_path / "e")])


def test_what_is_there_as_it_stands_is_no_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path(), "datav/a.jsonl", "data2/b.jsonl", "deep/x/data[v2]/c.jsonl")
    assert find_inputs(["data[v2]/*.jsonl"]).files == (Path("data2/b.jsonl"), Path("datav/a.jsonl"))
    make(Path(), "data[v2]/d.jsonl", "data[v2]/e[1].jsonl", "data[v2]/e1.jsonl")
    assert find_inputs(["data[v2]/*d.jsonl"]).files == (Path("data[v2]/d.jsonl"),)
    assert find_inputs(["data[v2]/e[1].jsonl"]).files == (Path("data[v2]/e[1].jsonl"),)
    assert find_inputs(["data[[]v2]/e[12].jsonl"]).files == (Path("data[v2]/e1.jsonl"),)
    assert find_inputs(["**/data[v2]/c.jsonl"]).files == (Path("deep/x/data[v2]/c.jsonl"),)
    assert find_inputs([f"{tmp_path}/deep/?/data[v2]/*"]).files == (tmp_path / "deep/x/data[v2]/c.jsonl",)
    with pytest.raises(Refused, match=r"matches no file; \[abc\] stands for one of a, b and c: write \[\[\] for \["):
        find_inputs(["absent[v2]/*.jsonl"])
    with pytest.raises(Refused, match="is empty: a variable that is not set"):
        find_inputs(["", "datav"])


def test_a_pattern_of_folders_reads_what_is_in_them_as_the_shell_would(tmp_path: Path) -> None:
    a, b = make(tmp_path, "lang=de/a.jsonl", "lang=en/b.jsonl")
    (other,) = make(tmp_path, "lang=en/notes.md")
    inputs = find_inputs([str(tmp_path / "lang=*")])
    assert (inputs.files, inputs.ignored) == ((a, b), (other,))


def test_comments_of_lists_are_told_and_a_file_of_that_name_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path(), "#1 best.jsonl", "b.jsonl")
    Path("inputs.txt").write_text("# what is read\r\n#1 best.jsonl\r\n#2 best.jsonl\r\nb.jsonl\r\n")
    inputs = find_inputs(["@inputs.txt"])
    assert inputs.files == (Path("#1 best.jsonl"), Path("b.jsonl"))
    comments = ["inputs.txt:1: # what is read", "inputs.txt:3: #2 best.jsonl"]
    assert inputs.report() == {"ignored_files": [], "comments_of_lists": comments}


def test_a_list_names_inputs_one_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path(), "b.jsonl", "folder/a.parquet.gz", "@odd.txt")
    Path("inputs.txt").write_text("# what is read\nb.jsonl\n\n  folder \n")
    found = find_inputs(["@inputs.txt", "@odd.txt"]).files
    assert found == (Path("b.jsonl"), Path("folder/a.parquet.gz"), Path("@odd.txt"))
    Path("empty.txt").write_text("# nothing\n")
    for argument, what in (("@absent.txt", "there is no list"), ("@empty.txt", "names no input")):
        with pytest.raises(Refused, match=what):
            find_inputs([argument, "b.jsonl"])


@pytest.mark.parametrize("kind", [".jsonl", ".txt", ".parquet"])
@pytest.mark.parametrize("compression", ["", ".gz", ".zst", ".bz2", ".xz"])
def test_kind_and_compression_are_told_by_the_name(kind: str, compression: str) -> None:
    path = Path(f"/corpus.gz/a.b{kind}{compression}")
    assert (kind_of(path), compression_of(path)) == (kind, compression)


def test_links_to_nothing_and_pipes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "absent")
    os.mkfifo(tmp_path / "b.jsonl")
    with pytest.raises(Refused, match=r"a\.jsonl: is a link to nothing[^$]*b\.jsonl: is no plain file"):
        find_inputs([str(tmp_path)])
    (tmp_path / "c.jsonl").symlink_to(".git/annex/objects/x/SHA256E-s1--4d.jsonl")
    with pytest.raises(Refused, match="is a link to nothing\n.*git annex get"):
        find_inputs([str(tmp_path / "c.jsonl")])


def test_a_file_whose_name_has_pattern_characters_is_that_file(tmp_path: Path) -> None:
    (path,) = make(tmp_path, "a[1].jsonl")
    assert find_inputs([str(path)]).files == (path,)


@pytest.mark.parametrize(
    "argument, message",
    [
        ("*.jsonl.gz", "matches no file"),
        ("absent.jsonl", "does not exist"),
        ("b.csv", r"unknown kind.*\n.*\.jsonl, \.jsonl\.gz"),
        ("folder", "without files of a known kind"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(tmp_path: Path, argument: str, message: str) -> None:
    make(tmp_path, "b.csv", "folder/readme.md")
    with pytest.raises(Refused, match=message):
        find_inputs([str(tmp_path / argument)])


def test_a_file_named_twice_is_refused(tmp_path: Path) -> None:
    (path,) = make(tmp_path, "a.jsonl")
    with pytest.raises(Refused, match="given twice"):
        find_inputs([str(path), str(tmp_path)])


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    make(tmp_path, "b.csv")
    with pytest.raises(Refused) as refused:
        find_inputs([str(tmp_path / name) for name in ("absent.txt", "b.csv", "*.gz")])
    assert len(refused.value.problems) == 3


def described(path: Path) -> tuple[SourceFile, ...]:
    piece = Piece(path, None, None, path.stat().st_size)
    with SourceDigests([piece]) as digests:
        return digests.describe({piece: digest_of(piece)})


def test_sources_are_recognised_by_content_not_by_name_or_time(tmp_path: Path) -> None:
    (path,) = make(tmp_path, "a.jsonl")
    sources = described(path)
    assert same_sources([path], sources)
    os.utime(path, (1, 1))
    assert same_sources([path], sources)
    moved = path.rename(tmp_path / "b.jsonl")
    assert same_sources([moved], sources)
    moved.write_bytes(b'{"text": "Words"}\n')
    os.utime(moved, ns=(sources[0].modified_ns, sources[0].modified_ns))
    assert not same_sources([moved], sources)
    assert not same_sources([], sources)


def test_a_source_that_is_not_what_was_read_is_refused(tmp_path: Path) -> None:
    (path,) = make(tmp_path, "a.jsonl")
    pieces = [Piece(path, 0, 9, 9), Piece(path, 9, 18, 9, 9)]
    read = {piece: digest_of(piece) for piece in pieces}
    with SourceDigests(pieces) as digests:
        (source,) = digests.describe(read)
    assert source.sha256 == sha256_of_file(path)
    path.write_bytes(b'{"text": "Words"}\n')
    with SourceDigests(pieces) as digests, pytest.raises(Refused, match="changed while it was read"):
        digests.describe(read)
