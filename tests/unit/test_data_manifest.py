"""The manifest comes back as written; another pair's, or something else, is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attnres_train.data.indexed import IndexedReader
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.data.manifest import Manifest, SourceFile, check_pair, read_manifest
from attnres_train.errors import Refused

MANIFEST = Manifest(
    tokenizer_fingerprint="f" * 64,
    vocabulary_size=300,
    eod_id=1,
    largest_id=7,
    token_type="uint16",
    documents=1,
    tokens=2,
    text_bytes=9,
    bin_bytes=4,
    bin_sha256="b",
    idx_sha256="i",
    sources=(SourceFile(path="a.jsonl", bytes=20, modified_ns=5, sha256="s"),),
    options={"text_key": "text", "bad_records": "stop"},
    counts={"blank_documents": 1},
    tool_version="0.1.0",
)


def write(prefix: Path, num_tokens: int, sidecar: bytes | None) -> None:
    with IndexedWriter(prefix, 300) as writer:
        writer.add_documents(np.full(num_tokens, 7), np.array([num_tokens]))
        writer.finish()
        writer.publish(sidecar)


def test_a_manifest_comes_back_as_written(tmp_path: Path) -> None:
    write(tmp_path / "c", 2, MANIFEST.to_json())
    manifest = read_manifest(tmp_path / "c")
    assert manifest == MANIFEST
    check_pair(MANIFEST, IndexedReader(tmp_path / "c"))


def test_a_pair_without_a_manifest_has_none(tmp_path: Path) -> None:
    write(tmp_path / "c", 2, None)
    assert read_manifest(tmp_path / "c") is None


def test_the_manifest_of_another_pair_is_refused_with_both_sizes(tmp_path: Path) -> None:
    write(tmp_path / "c", 3, MANIFEST.to_json())
    with pytest.raises(Refused, match="1 documents with 2 tokens.*1 with 3"):
        check_pair(MANIFEST, IndexedReader(tmp_path / "c"))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"not json", b'{"version": 1}', b'{"version": 2}'])
def test_other_files_of_that_name_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.json").write_bytes(content)
    with pytest.raises(Refused, match=r"c\.json"):
        read_manifest(tmp_path / "c")


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({**json.loads(MANIFEST.to_json()), "surprise": 1, "version": 1}))
    with pytest.raises(Refused, match="surprise"):
        read_manifest(tmp_path / "c")


def test_any_changed_byte_of_a_manifest_is_found(tmp_path: Path) -> None:
    data = MANIFEST.to_json()
    (tmp_path / "c.json").write_bytes(data)
    assert read_manifest(tmp_path / "c") == MANIFEST
    for place in range(0, len(data), 7):
        if data[place : place + 1].isspace():
            continue
        changed = bytearray(data)
        changed[place] = ord("7") if data[place] != ord("7") else ord("8")
        (tmp_path / "c.json").write_bytes(changed)
        with pytest.raises(Refused, match=r"c\.json"):
            read_manifest(tmp_path / "c")
