"""The proof that a pair says what its sources say: it passes where that is so, and every lie is found."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnres_train.data.files import sha256_of_file
from attnres_train.data.indexed import IndexedReader
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.data.manifest import read_manifest
from attnres_train.tokenizer.training import TrainingOptions, train_model
from data_tools.preprocess import main as preprocess
from data_tools.streams import _Gunzip
from data_tools.verify import main as verify

TEXTS = [f"Document {i} of several.\n" for i in range(30)] + [" ", "a \u2581 sign", "\u00e9\0 "]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("m.model").write_bytes(train_model(TEXTS * 20, TrainingOptions(vocab_size=300)))
    Path("a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    arguments = ["a.jsonl", "--tokenizer", "m.model", "--output", "c", "--workers", "1"]
    assert preprocess(arguments) == 0
    return tmp_path


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = verify(["c", *arguments, "--json"])
    return code, capsys.readouterr().out


TEXT = ("--tokenizer", "m.model", "--text")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_true_pair_passes_and_the_exception_is_counted(
    corpus: Path, capsys: pytest.CaptureFixture[str], workers: str
) -> None:
    code, told = report(capsys, *TEXT, "--workers", workers)
    assert code == 0
    assert json.loads(told)["documents_with_u2581"] == 1
    Path("a.jsonl").rename("moved.jsonl")
    assert "a source is missing" in report(capsys, *TEXT)[1]
    assert report(capsys, *TEXT, "--sources", "moved.jsonl")[0] == 0


def test_text_that_a_checksum_disproves_is_told(
    corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray(gzip.compress(Path("a.jsonl").read_bytes(), compresslevel=0))
    content[content.index(b"Document 7")] ^= 1
    Path("b.jsonl.gz").write_bytes(content)
    again = ["a.jsonl", "b.jsonl.gz", "--tokenizer", "m.model", "--output", "c", "--overwrite", "--workers", "1"]
    assert preprocess([*again, "--bad-records", "skip"]) == 0
    code, told = report(capsys, *TEXT)
    assert code == 0 and json.loads(told)["skipped_records"] == 33
    assert json.loads(told)["text"].endswith("; 33 records of the sources are not among them")
    assert json.loads(told)["skipped"][0]["file"] == "b.jsonl.gz"
    # As it was before archives were held back.
    with monkeypatch.context() as earlier:
        earlier.setattr("data_tools.records.check_to_its_end", lambda path: None)
        earlier.setattr("data_tools.streams._Gunzip.decompress", unchecked)
        assert preprocess([*again, "--bad-records", "skip"]) == 0
    code, told = report(capsys, *TEXT)
    assert code == 2 and "the sources hold 32 documents, the pair 64" in told


def unchecked(self: _Gunzip, data: bytes, most: int) -> bytes:
    """As if the checksum were right."""
    raw = zlib.decompressobj(wbits=-15)
    found = raw.decompress(data[10:])
    self._zlib = zlib.decompressobj(wbits=31)
    self._zlib.decompress(gzip.compress(found))
    return found


def test_a_changed_byte_is_found(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(Path("c.bin").read_bytes())
    data[0] ^= 1
    Path("c.bin").write_bytes(data)
    code, told = report(capsys)
    assert code == 2 and "SHA-256" in told


def write_anew(documents: list[list[int]]) -> None:
    """The pair with other documents, and a manifest that knows of nothing but the checksums."""
    manifest = read_manifest("c")
    assert manifest is not None
    with IndexedWriter("c", manifest.vocabulary_size, "replace") as writer:
        writer.add_documents(np.concatenate(documents), np.array([len(document) for document in documents]))
        facts = writer.finish()
        lie = replace(manifest, bin_sha256=facts.bin_sha256, idx_sha256=facts.idx_sha256)
        lie = replace(lie, documents=facts.documents, tokens=facts.tokens)
        writer.publish(lie.to_json())
    assert sha256_of_file(Path("c.bin")) == facts.bin_sha256


LIES: dict[str, tuple[Callable[[list[list[int]]], list[list[int]]], str]] = {
    "a token changed": (lambda all_: [[all_[0][0] ^ 1, *all_[0][1:]], *all_[1:]], "text of 1 documents"),
    "a document lost": (lambda all_: all_[1:], "the sources hold 32 documents, the pair 31"),
    "a document repeated": (lambda all_: [all_[0], *all_], "the sources hold 32 documents, the pair 33"),
    "documents exchanged": (lambda all_: [all_[1], all_[0], *all_[2:]], "text of 2 documents"),
    "no end": (lambda all_: [*all_[:5], all_[5][:-1], *all_[6:]], 'document 5", "message": "has 0 end-of-document ids'),
    "an end inside": (
        lambda all_: [*all_[:5], [1, *all_[5]], *all_[6:]],
        'document 5", "message": "has 2 end-of-document ids',
    ),
    "another largest id": (lambda all_: [[min(i, 298) for i in one] for one in all_], "the largest id is 298"),
}


@pytest.mark.parametrize("lie", LIES)
def test_every_lie_is_found_though_the_checksums_are_right(
    corpus: Path, capsys: pytest.CaptureFixture[str], lie: str
) -> None:
    reader = IndexedReader("c")
    documents = [reader.document(i).tolist() for i in range(reader.num_documents)]
    change, what = LIES[lie]
    write_anew(change(documents))
    code, told = report(capsys, *TEXT)
    assert code == 2 and what in told


def test_what_cannot_be_compared_is_refused(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "needs the tokenizer" in report(capsys, "--text")[1]
    Path("other.model").write_bytes(train_model(TEXTS * 20, TrainingOptions(vocab_size=301)))
    assert "fingerprint" in report(capsys, "--tokenizer", "other.model")[1]
    Path("a.jsonl").write_text(json.dumps({"text": "another"}))
    assert "not those that the pair was made of" in report(capsys, *TEXT)[1]
    Path("c.json").unlink()
    assert "no manifest" in report(capsys)[1]
