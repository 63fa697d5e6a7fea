"""A manifest is read as it was written or refused by name, whatever stands in its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from attnres_train.checkpoint.checksum import FileRecord
from attnres_train.checkpoint.manifest import FILE_NAME, FORMAT, Manifest, plain_fields, read_manifest, write_manifest
from attnres_train.errors import Refused
from tests.unit.checkpoint_folders import manifest, write_sealed

RECORD = FileRecord(7, "0123abcd")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def small(**changes: Any) -> Manifest:
    return manifest(files={"part": RECORD}, **changes)


def refusal(folder: Path) -> str:
    """How the manifest in `folder` is refused; any other exception, or none, fails the test."""
    with pytest.raises(Refused) as caught:
        read_manifest(folder)
    (problem,) = caught.value.problems
    assert str(folder) in problem.key, "the refusal does not name the file"
    assert problem.message and problem.remedy
    return problem.message


def test_what_is_written_is_read(tmp_path: Path) -> None:
    names = {"p": RECORD, "a/b c": FileRecord(2**62, "ffffffff"), '"\\\u2603': FileRecord(0, "00000000")}
    settings = {"a": None, "b": [1, 2.5, "x"], "c": {"d": True}, "crc32_of_manifest": "00000000"}
    for stated in (small(), small(step=0, settings=settings), manifest(files=names, layers_per_stage=[])):
        write_manifest(tmp_path, stated)
        assert read_manifest(tmp_path) == stated
    assert read_manifest(tmp_path).bytes == 7 + 2**62
    assert json.loads((tmp_path / FILE_NAME).read_text())["format"] == FORMAT == 2


@given(JSON, st.text(), st.integers(0, 2**80))
def test_any_settings_and_numbers_are_read_as_written(
    tmp_path_factory: pytest.TempPathFactory, value: Any, name: str, step: int
) -> None:
    folder = tmp_path_factory.mktemp("round-trip")
    stated = small(step=step, settings={name: value}, versions={name: name})
    write_manifest(folder, stated)
    as_text = [json.dumps(plain_fields(one)) for one in (read_manifest(folder), stated)]
    assert as_text[0] == as_text[1], "as text, since NaN is unequal to itself"


def test_a_sealed_manifest_of_these_tests_is_read(tmp_path: Path) -> None:
    write_sealed(tmp_path, plain_fields(small()))
    assert read_manifest(tmp_path) == small()


def test_every_flipped_bit_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, small())
    text = (tmp_path / FILE_NAME).read_bytes()
    for bit in range(8 * len(text)):
        flipped = bytearray(text)
        flipped[bit // 8] ^= 1 << (bit % 8)
        (tmp_path / FILE_NAME).write_bytes(flipped)
        assert "cannot be read: " in refusal(tmp_path), bit


def test_every_length_but_its_own_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, small())
    text = (tmp_path / FILE_NAME).read_bytes()
    others = [text[:length] for length in range(len(text))]
    for other in [*others, text + b"\n", text + b"\0", text + text, b"\0" * len(text)]:
        (tmp_path / FILE_NAME).write_bytes(other)
        assert "checksum" in refusal(tmp_path), len(other)


def test_a_folder_without_one_is_refused(tmp_path: Path) -> None:
    assert "has no manifest.json" in refusal(tmp_path)
    assert "has no manifest.json" in refusal(tmp_path / "gone")
    (tmp_path / FILE_NAME).mkdir()
    assert "has no manifest.json" in refusal(tmp_path)


@pytest.mark.parametrize("format_", [1, 3, "2", None, True, [2], {}, 2.5, 10**4000])
def test_another_format_is_refused(format_: Any, tmp_path: Path) -> None:
    write_sealed(tmp_path, plain_fields(small()) | {"format": format_})
    assert f"has format {format_}, this version reads 2" in refusal(tmp_path)


def test_manifests_of_format_1_had_no_checksum_and_are_refused(tmp_path: Path) -> None:
    old = plain_fields(small()) | {"format": 1, "files": {"part": 7}}
    (tmp_path / FILE_NAME).write_text(json.dumps(old))
    assert "made by another version" in refusal(tmp_path)


WRONG: list[dict[str, Any]] = [
    {"files": [1]},
    {"files": 1},
    {"files": None},
    {"files": "part"},
    {"files": {"part": 7}},
    {"files": {"part": [7, "0123abcd"]}},
    {"files": {"part": {}}},
    {"files": {"part": {"bytes": 7}}},
    {"files": {"part": {"bytes": "7", "crc32": "0123abcd"}}},
    {"files": {"part": {"bytes": True, "crc32": "0123abcd"}}},
    {"files": {"part": {"bytes": 7.0, "crc32": "0123abcd"}}},
    {"files": {"part": {"bytes": 7, "crc32": 123}}},
    {"files": {"part": {"bytes": 7, "crc32": None}}},
    {"files": {"part": {"bytes": 7, "crc32": "0123abcd", "sha256": ""}}},
    {"step": "10"},
    {"step": 10.0},
    {"step": True},
    {"step": None},
    {"step": [10]},
    {"created": 5},
    {"grid": ["tensor"]},
    {"grid": {"tensor": "1"}},
    {"grid": {"tensor": 1.5}},
    {"layers_per_stage": 4},
    {"layers_per_stage": ["2"]},
    {"layers_per_stage": {"0": 2}},
    {"versions": {"torch": 2}},
    {"tensors": ["a"]},
    {"tensors": {"a": [3, 4]}},
    {"fingerprints": {"train": None}},
    {"settings": []},
    {"format": 2.0},
    {"unknown": 1},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_wrong_types_are_refused_even_under_a_right_checksum(wrong: dict[str, Any], tmp_path: Path) -> None:
    write_sealed(tmp_path, plain_fields(small()) | wrong)
    assert "cannot be read: " in refusal(tmp_path)


HOLLOW: list[dict[str, Any]] = [
    {"tensors": {"a": {}}},
    {"tensors": {"a": {"shape": 3, "dtype": "float32"}}},
    {"tensors": {"a": {"shape": ["3"], "dtype": "float32"}}},
    {"grid": {}},
    {"files": {"a\0b": {"bytes": 7, "crc32": "0123abcd"}}},
    {"files": {"\ud800": {"bytes": 7, "crc32": "0123abcd"}}},
    {"files": {"../part": {"bytes": 7, "crc32": "0123abcd"}}},
    {"files": {"part": {"bytes": -7, "crc32": "0123abcd"}}},
]


@pytest.mark.parametrize("hollow", HOLLOW, ids=str)
def test_what_readers_rely_on_is_there(hollow: dict[str, Any], tmp_path: Path) -> None:
    """`fit`, `inspect` and `verify` take shapes, the grid's axes and names inside the folder for granted."""
    write_sealed(tmp_path, plain_fields(small()) | hollow)
    assert "cannot be read: " in refusal(tmp_path)


@pytest.mark.parametrize(
    "field", [name for name in plain_fields(small()) if name not in ("format", "losses", "origin")]
)
def test_every_field_is_needed(field: str, tmp_path: Path) -> None:
    """But for the sums since the last record and the origin, which older checkpoints lack."""
    fields = plain_fields(small())
    del fields[field]
    write_sealed(tmp_path, fields)
    assert field in refusal(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"settings": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"settings": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        b'{"step": ' + b"9" * 6000 + b"}",
        b'{"step": "\xff\xfe"}',
        b'{"created": "\xed\xa0\x80"}',
        b'{"step": 1e999, "format": 2, "files": {}}',
        b'{"format": 2, "files": {}} trailing',
        b"\xef\xbb\xbf{}",
        '{"format": 2}'.encode("utf-16"),
    ],
    ids=lambda text: repr(text[:24]),
)
def test_what_is_no_manifest_at_all_is_refused(text: bytes, tmp_path: Path) -> None:
    """Once as it is, once under a right checksum."""
    (tmp_path / FILE_NAME).write_bytes(text)
    assert "cannot be read: it has no checksum" in refusal(tmp_path)
    write_sealed(tmp_path, None, text=text)
    refusal(tmp_path)


def test_whole_fields_nested_too_deeply_or_of_too_many_digits_are_refused(tmp_path: Path) -> None:
    text = json.dumps(plain_fields(small()))
    for old, new in (('"step": 10', '"step": ' + "9" * 6000), ("0.0006", "[" * 100_000 + "]" * 100_000)):
        assert old in text
        write_sealed(tmp_path, None, text=text.replace(old, new).encode())
        assert "cannot be read: " in refusal(tmp_path)
    write_sealed(tmp_path, None, text=text.replace("tokenizer", "tok\xffenizer").encode("latin-1"))
    assert "cannot be read: 'utf-8' codec" in refusal(tmp_path)


@given(st.sampled_from(sorted(plain_fields(small()))), JSON)
@example("losses", {"valid": {}})
@example("losses", {"valid": {"loss": 1.0}})
def test_any_value_of_any_field_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, field: str, value: Any
) -> None:
    folder = tmp_path_factory.mktemp("any-value")
    fields = plain_fields(small()) | {field: value}
    write_sealed(folder, fields)
    try:
        read = read_manifest(folder)
    except Refused as refused:
        assert FILE_NAME in refused.problems[0].key
    else:
        assert json.dumps(plain_fields(read), sort_keys=True) == json.dumps(fields, sort_keys=True)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    folder = tmp_path_factory.mktemp("any-bytes")
    (folder / FILE_NAME).write_bytes(text)
    refusal(folder)
    write_sealed(folder, None, text=text)
    refusal(folder)
