"""Loading a model: its identity, its special pieces, and files that are no model."""

from __future__ import annotations

import gzip
import hashlib
import pickle
from pathlib import Path

import pytest
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from attnres_train.errors import Refused
from attnres_train.tokenizer.huggingface import HuggingFaceTokenizer
from attnres_train.tokenizer.load import load_tokenizer
from attnres_train.tokenizer.protocol import Tokenizer
from attnres_train.tokenizer.sentencepiece import SentencePieceTokenizer
from attnres_train.tokenizer.training import TrainingOptions, train_model
from tests.unit.huggingface_files import byte_level, unigram
from tests.unit.tokenizer_models import bare_model, model_of_kind

TEXTS = ["Some words to train on, and some more words.\n"] * 50


def test_the_fingerprint_is_the_checksum_of_the_file(tmp_path: Path) -> None:
    model = train_model(TEXTS, TrainingOptions(vocab_size=290))
    (tmp_path / "m.model").write_bytes(model)
    tokenizer = load_tokenizer(tmp_path / "m.model")
    assert tokenizer.fingerprint == hashlib.sha256(model).hexdigest()
    assert tokenizer.vocab_size == 290
    assert tokenizer.keeps_text


@pytest.mark.parametrize(
    "content, what",
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b'{"version": "1.0", "model": {}}', "JSON, but no tokenizer.json: it holds an object with the keys version"),
        (b'\xef\xbb\xbf {"a": ', "JSON, but damaged"),
        (b"[PAD]\n[unused0]\n", "plain text"),
        (b'{"config": {}, "vocab": []}', "tekken.json"),
        (byte_level(), "Hugging Face tokenizer.json\n.*a name that ends in .json"),
        (b"IQ== 0\nIg== 1\n", "tiktoken's format .*\n.*give the tokenizer.json of the same model"),
        (pickle.dumps([1]), "pickle"),
        (b"\x40" + bytes(7) + b'{"weights": {"dtype": "F32", "shape": [1]}}', "safetensors"),
        (b"PAR1\x15\x04", "Parquet"),
        (b"PK\x03\x04 word/document.xml", "Word document"),
        (b"PK\x03\x04 archive/data.pkl", "torch.save"),
        (gzip.compress(b"a model", mtime=0), "gzip"),
        (b"Just some words.\nNothing else.\n", "plain text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"PK\x03\x04rest", "zip"),
        (bytes(range(256)), "binary data"),
    ],
)
def test_a_file_that_is_no_model_is_refused_saying_what_it_is(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "m.model").write_bytes(content)
    with pytest.raises(Refused, match=f"m.model: is not a sentencepiece model.*{what}"):
        load_tokenizer(tmp_path / "m.model")


def test_a_file_far_too_large_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "model-00001-of-00002.safetensors", "wb") as file:
        file.write(b"\x40" + bytes(7) + b'{"weights": {}}')
        file.truncate(1 << 40)
    with pytest.raises(Refused, match="1,099,511,627,776 bytes and is a safetensors file"):
        load_tokenizer(tmp_path / "model-00001-of-00002.safetensors")


def test_a_model_that_was_cut_short_is_refused() -> None:
    model = train_model(TEXTS, TrainingOptions(vocab_size=290))
    with pytest.raises(Refused, match="cut short"):
        SentencePieceTokenizer(model[: len(model) // 2])


@pytest.mark.parametrize("piece, reason", [("a\0b", "must not include null"), ("", "must not be empty")])
def test_a_model_that_the_library_refuses_is_told_by_its_reason(piece: str, reason: str) -> None:
    """As scripts write them that add pieces to a model (google/sentencepiece#1308)."""
    model = ModelProto.FromString(train_model(TEXTS, TrainingOptions(vocab_size=290)))
    model.pieces[-1].piece = piece
    what = f"m.model: is a sentencepiece model that the library refuses: piece {reason}.*\n.*damaged: copy it again"
    with pytest.raises(Refused, match=what):
        SentencePieceTokenizer(model.SerializeToString(), "m.model")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="does not exist"):
        load_tokenizer(tmp_path / "m.model")
    with pytest.raises(Refused, match="is a folder"):
        load_tokenizer(tmp_path)


def test_a_model_without_an_end_piece_has_none_until_one_is_named() -> None:
    model = bare_model(eos_id=-1, control_symbols=["<end>"], user_defined_symbols=["<typed>"])
    assert SentencePieceTokenizer(model).eod_id is None
    named = SentencePieceTokenizer(model, eod_piece="<end>")
    assert named.eod_id is not None
    assert named.eod_id not in named.encode("Some <end> words")


@pytest.mark.parametrize("piece", ["<typed>", "absent", "<unk>"])
def test_only_a_control_piece_can_end_documents(piece: str) -> None:
    model = bare_model(control_symbols=["<end>"], user_defined_symbols=["<typed>"])
    with pytest.raises(Refused, match=f"'{piece}' is no control piece.*</s>, <end>"):
        SentencePieceTokenizer(model, eod_piece=piece)


def test_a_model_with_the_librarys_defaults_is_known_not_to_keep_text() -> None:
    tokenizer = SentencePieceTokenizer(bare_model())
    assert not tokenizer.keeps_text
    assert tokenizer.pad_id is None
    assert tokenizer.decode(tokenizer.encode("an  and")) == "an and"


@pytest.mark.parametrize("ids", [[-1], [290], [5, 1000]])
def test_decoding_ids_outside_the_vocabulary_is_an_error(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="outside"):
        SentencePieceTokenizer(train_model(TEXTS, TrainingOptions(vocab_size=290))).decode(ids)


@pytest.mark.parametrize(
    "tokenizer",
    [
        SentencePieceTokenizer(model_of_kind("as train_tokenizer makes them")),
        SentencePieceTokenizer(model_of_kind("unigram")),
        HuggingFaceTokenizer(byte_level()),
        HuggingFaceTokenizer(unigram()),
    ],
)
def test_a_lone_surrogate_is_no_text(tokenizer: Tokenizer) -> None:
    with pytest.raises(UnicodeEncodeError):
        tokenizer.encode_many(["text", "a\ud800b"])
