"""Which files are read, and which requests are refused before any work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attnres_train.errors import Refused
from data_tools.inputs import compression_of, find_inputs, kind_of
from data_tools.sources import SourceDigests, same_sources


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


def test_sources_are_recognised_by_time_or_content_not_by_name(tmp_path: Path) -> None:
    (path,) = make(tmp_path, "a.jsonl")
    with SourceDigests([path]) as digests:
        sources = digests.describe([path])
    assert same_sources([path], sources)
    os.utime(path, (1, 1))
    assert same_sources([path], sources)
    moved = path.rename(tmp_path / "b.jsonl")
    assert same_sources([moved], sources)
    moved.write_bytes(b'{"text": "Words"}\n')
    assert not same_sources([moved], sources)
    assert not same_sources([], sources)


def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    (path,) = make(tmp_path, "a.jsonl")
    with SourceDigests([path]) as digests:
        path.write_bytes(b"more")
        with pytest.raises(Refused, match="changed while it was read"):
            digests.describe([path])
