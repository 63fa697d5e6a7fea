"""Trained models keep text as it is, use all of it, and never make a special id out of text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres_train.errors import Refused
from attnres_train.tokenizer.sentencepiece import SentencePieceTokenizer
from attnres_train.tokenizer.training import (
    MAX_LINE,
    TrainingOptions,
    cut_for_training,
    smallest_vocabulary,
    train_model,
)

PROSE = [
    "The depth of a network is the number of its layers, and each layer reads what came before.\n"
    "  An indented line, with 12 and 345 and some  double spaces.\n"
    "def double(number):\n    return 2 * number\n"
] * 30
DIFFICULT = {
    "two spaces": "a  b",
    "line breaks and a tab": "a\n\n\tb",
    "spaces at both ends": "  a b  ",
    "carriage return": "a\r\nb\r\n",
    "only spaces": "     ",
    "ligature fi": "\ufb01ne",
    "circled digit": "\u2460",
    "full-width digit": "\uff11",
    "joined emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "combining accent": "e\u0301",
    "composed accent": "\u00e9",
    "NUL": "a\0b",
    "byte order mark inside": "a\ufeffb",
    "source code": "def f(x):\n    if x:\n        return 1\n",
    "sentencepiece's reserved character": "a\u2585b",
    "markers": "</s><unk><pad><s><0x0A>",
    "empty": "",
}


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(train_model(PROSE, TrainingOptions(vocab_size=305, model_type=request.param)))


@pytest.mark.parametrize("text", DIFFICULT.values(), ids=DIFFICULT.keys())
def test_difficult_text_comes_back_without_unknown_tokens(tokenizer: SentencePieceTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.unk_id not in ids


@settings(deadline=None, max_examples=300)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")))
def test_any_text_comes_back_without_special_tokens(tokenizer: SentencePieceTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not {tokenizer.unk_id, tokenizer.eod_id, tokenizer.pad_id} & set(ids)


def test_the_one_documented_exception_comes_back_as_a_space(tokenizer: SentencePieceTokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\u2581b")) == "a b"


def test_the_special_ids_are_valid_and_distinct(tokenizer: SentencePieceTokenizer) -> None:
    assert (tokenizer.unk_id, tokenizer.eod_id, tokenizer.pad_id) == (0, 1, 2)
    assert tokenizer.decode([1, *tokenizer.encode("text"), 2, 1]) == "text"


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_text_full_of_literal_markers_trains_and_never_gives_their_ids(model_type: str) -> None:
    texts = ["An example</s>of<unk>markup<pad>with<s>markers</s></s>."] * 200 + PROSE
    options = TrainingOptions(vocab_size=305, model_type=model_type)  # type: ignore[arg-type]
    tokenizer = SentencePieceTokenizer(train_model(texts, options))
    ids = tokenizer.encode(texts[0])
    assert tokenizer.eod_id == 1
    assert not {0, 1, 2} & set(ids)
    assert tokenizer.decode(ids) == texts[0]


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_the_same_text_gives_the_same_model(model_type: str) -> None:
    options = TrainingOptions(vocab_size=305, model_type=model_type)  # type: ignore[arg-type]
    assert train_model(PROSE, options) == train_model(iter(PROSE), options)


def test_a_letter_that_occurs_only_in_long_lines_becomes_a_piece() -> None:
    long_lines = ["\u03a9 is a letter, and this line is long. " * 260] * 30
    assert len(long_lines[0].encode()) >= 10_000
    for texts, vocab_size in (([*PROSE, *long_lines], 305), (long_lines, 285)):
        tokenizer = SentencePieceTokenizer(train_model(texts, TrainingOptions(vocab_size=vocab_size)))
        assert len(tokenizer.encode("\u03a9")) == 1


@settings(deadline=None)
@given(text=st.text(alphabet="ab \n", max_size=60), limit=st.integers(2, 9))
def test_cutting_drops_nothing_but_line_breaks(text: str, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnres_train.tokenizer.training.MAX_LINE", limit)
        stretches = list(cut_for_training(text))
    assert "".join(stretches) == text.replace("\n", "")
    assert all(0 < len(stretch) <= limit for stretch in stretches)


def test_long_lines_are_cut_before_spaces() -> None:
    first, second = cut_for_training("x" * (MAX_LINE - 3) + " word and more")
    assert (first, second) == ("x" * (MAX_LINE - 3), " word and more")


def test_the_characters_the_trainer_would_drop_a_line_for_are_cut_around() -> None:
    assert list(cut_for_training("abc\0def\u2585ghi\n\n")) == ["abc", "def", "ghi"]


@pytest.mark.parametrize(
    "texts, vocab_size, message",
    [
        ([], 300, "no text"),
        (["\n\n", ""], 300, "no text"),
        (["\r\r\r"], 300, "no text"),
        (["few words"], 5000, "at most"),
        (PROSE, 260, "alone are"),
    ],
)
def test_impossible_requests_are_refused_in_words(texts: list[str], vocab_size: int, message: str) -> None:
    with pytest.raises(Refused, match=message):
        train_model(texts, TrainingOptions(vocab_size=vocab_size))


def test_the_vocabulary_size_that_a_refusal_names_works() -> None:
    with pytest.raises(Refused) as refused:
        train_model(PROSE, TrainingOptions(vocab_size=5000))
    largest = int(refused.value.problems[0].message.split()[-2])
    assert SentencePieceTokenizer(train_model(PROSE, TrainingOptions(vocab_size=largest))).vocab_size == largest


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_the_smallest_vocabulary_size_is_that_of_the_refusal_and_works(model_type: str) -> None:
    model = train_model(PROSE, TrainingOptions(vocab_size=305, model_type=model_type))  # type: ignore[arg-type]
    smallest = smallest_vocabulary(model)
    again = train_model(PROSE, TrainingOptions(vocab_size=smallest, model_type=model_type))  # type: ignore[arg-type]
    assert SentencePieceTokenizer(again).vocab_size == smallest
    with pytest.raises(Refused, match=f"alone are {smallest} pieces"):
        train_model(PROSE, TrainingOptions(vocab_size=smallest - 1, model_type=model_type))  # type: ignore[arg-type]


def test_an_error_of_the_texts_comes_out_as_itself() -> None:
    def texts() -> object:
        yield "some text"
        raise LookupError("my own")

    with pytest.raises(LookupError, match="my own"):
        train_model(texts(), TrainingOptions(vocab_size=300))  # type: ignore[arg-type]
