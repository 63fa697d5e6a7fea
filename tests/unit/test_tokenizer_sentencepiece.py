"""Loading a model: its identity, its special pieces, and files that are no model."""

from __future__ import annotations

import gzip
import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceTrainer

from attnres_train.errors import Refused
from attnres_train.tokenizer.load import load_tokenizer
from attnres_train.tokenizer.sentencepiece import SentencePieceTokenizer
from attnres_train.tokenizer.training import TrainingOptions, train_model

TEXTS = ["Some words to train on, and some more words.\n"] * 50


def bare_model(**options: Any) -> bytes:
    """A model with the library's own defaults, but for `options`."""
    model = io.BytesIO()
    defaults: dict[str, Any] = {
        "vocab_size": 40,
        "hard_vocab_limit": False,
        "minloglevel": 2,
        "sentence_iterator": iter(TEXTS),
        "model_writer": model,
    }
    SentencePieceTrainer.train(**defaults | options)
    return model.getvalue()


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
        (b'{"version": "1.0", "model": {}}', "JSON"),
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


def test_a_model_that_was_cut_short_is_refused() -> None:
    model = train_model(TEXTS, TrainingOptions(vocab_size=290))
    with pytest.raises(Refused, match="cut short"):
        SentencePieceTokenizer(model[: len(model) // 2])


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
    assert tokenizer.decode(tokenizer.encode("some  words")) == "some words"


@pytest.mark.parametrize("ids", [[-1], [290], [5, 1000]])
def test_decoding_ids_outside_the_vocabulary_is_an_error(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="outside"):
        SentencePieceTokenizer(train_model(TEXTS, TrainingOptions(vocab_size=290))).decode(ids)
