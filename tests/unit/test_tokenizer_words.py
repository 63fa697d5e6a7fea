"""Encoding word by word gives the ids of encoding the whole text."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from attnres_train.tokenizer.sentencepiece import SentencePieceTokenizer
from attnres_train.tokenizer.training import TrainingOptions, train_model
from attnres_train.tokenizer.words import WORD, WordEncoder, can_cut_into_words

TEXTS = [
    "a banana and an  ananas,\tand   bands\n    aabb  baab\n",
    "an\u00e9 \u03a9 nan dab 10 101 1001\n",
] * 40
ALPHABET = "abnd  \n\t\r,10\u00e9\u03a9\u2585\u2581\0\u00a0"


@pytest.fixture(scope="module")
def model() -> bytes:
    return train_model(TEXTS, TrainingOptions(vocab_size=310))


@settings(deadline=None, max_examples=500)
@given(text=st.text(alphabet=ALPHABET, max_size=80))
def test_the_tokenizer_gives_the_ids_of_the_library(model: bytes, text: str) -> None:
    assert SentencePieceTokenizer(model).encode(text) == SentencePieceProcessor(model_proto=model).encode(text)


@settings(deadline=None)
@given(text=st.text(alphabet=ALPHABET))
def test_cutting_into_words_drops_nothing(text: str) -> None:
    assert "".join(WORD.findall(text)) == text


def test_repeated_words_are_encoded_once(model: bytes) -> None:
    asked: list[str] = []
    processor = SentencePieceProcessor(model_proto=model)

    def encode(word: str) -> list[int]:
        asked.append(word)
        return list(processor.encode(word))

    encoder = WordEncoder(encode)
    assert encoder("and band and") + encoder(" and") == processor.encode("and band and and")
    assert asked == ["and", " band", " and"]


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnres_train.tokenizer.words.MOST_REMEMBERED", 10)
    encoder = WordEncoder(lambda word: [len(word)])
    for number in range(100):
        encoder(f"word{number} " + "x" * 100)
    assert len(encoder._memory) <= 12


def test_vocabularies_with_pieces_across_words_are_recognised() -> None:
    assert can_cut_into_words(["\n", "\u2581\u2581", "\u2581and", "a", "</s>", "\t"])
    assert not can_cut_into_words(["and\u2581so"])
    assert not can_cut_into_words(["\u2581a\u2581"])
    assert not can_cut_into_words(["\n\n"])
    assert not can_cut_into_words(["a\n"])


def test_models_whose_pieces_cross_spaces_are_encoded_whole() -> None:
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(["to be or not to be to be to be"] * 50),
        model_writer=model,
        model_type="bpe",
        vocab_size=285,
        split_by_whitespace=False,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        byte_fallback=True,
        minloglevel=2,
    )
    processor = SentencePieceProcessor(model_proto=model.getvalue())
    assert any("\u2581" in piece.lstrip("\u2581") for piece in map(processor.id_to_piece, range(285)))
    assert SentencePieceTokenizer(model.getvalue()).encode("to be to be not to be") == processor.encode(
        "to be to be not to be"
    )
