"""Encoding word by word gives the ids of encoding the whole text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from attnres_train.tokenizer import words
from attnres_train.tokenizer.cuts import Cuts
from attnres_train.tokenizer.protocol import Encoded
from attnres_train.tokenizer.sentencepiece import SentencePieceTokenizer
from attnres_train.tokenizer.words import WordEncoder
from tests.unit.tokenizer_models import ANY_TEXT, DIFFICULT_TEXT, KEEPING, KINDS, TEXTS, model_of_kind


@cache
def tokenizer_of(kind: str) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(model_of_kind(kind))


@cache
def library_of(kind: str) -> SentencePieceProcessor:
    return SentencePieceProcessor(model_proto=model_of_kind(kind))


def documents_of(encoded: Encoded) -> list[list[int]]:
    assert (encoded.ids.dtype, encoded.lengths.dtype) == (np.int32, np.int64)
    assert encoded.lengths.sum() == len(encoded.ids)
    return [part.tolist() for part in np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])] if encoded[1].size else []


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=100)
@given(texts=st.lists(DIFFICULT_TEXT, max_size=4), slice_bytes=st.sampled_from([1, 16, 1 << 20]))
@example(texts=["", " ", "", "\n", "\u2581", "  "], slice_bytes=1)
@example(texts=["\x7f\x80\u07ff\u0800\uffff\U00010000a\u0800b\u4e2d"], slice_bytes=1)
@example(texts=[TEXTS[0] + TEXTS[2], TEXTS[1]], slice_bytes=1 << 20)
def test_the_ids_are_those_of_the_library(kind: str, texts: list[str], slice_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "SLICE_BYTES", slice_bytes)
        patch.setattr(words, "REMEMBERED_BYTES", 10_000)
        assert documents_of(tokenizer_of(kind).encode_many(texts)) == [library_of(kind).encode(text) for text in texts]


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=50)
@given(text=ANY_TEXT)
def test_any_text_has_the_ids_of_the_library(kind: str, text: str) -> None:
    assert tokenizer_of(kind).encode(text) == library_of(kind).encode(text)


@pytest.mark.parametrize("kind", KEEPING)
@settings(deadline=None, max_examples=60)
@given(text=DIFFICULT_TEXT | ANY_TEXT)
def test_text_comes_back_with_spaces_for_the_one_exception(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    assert tokenizer.keeps_text
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace("\u2581", " ")


def test_models_that_cannot_be_cut_are_encoded_whole() -> None:
    by_words = [kind for kind in KINDS if tokenizer_of(kind)._encode_words is not None]
    assert by_words == KEEPING


class BytesAsIds:
    """Joins letters and nothing else to words, whose ids are their bytes; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        letters = "abcdefghijklmnopqrstuvwxyz\u4e2d\u6587"
        self.encode = WordEncoder(Cuts(map("".join, product(letters, repeat=2))).word_starts, self._ids)

    def _ids(self, words: list[bytes]) -> list[list[int]]:
        self.asked += words
        return [list(word) for word in words]

    def restored(self, documents: list[bytes]) -> bytes:
        return bytes(self.encode(documents).ids.tolist())


def test_repeated_words_are_encoded_once() -> None:
    encoder = BytesAsIds()
    assert encoder.restored([b"ab,cd,ab"]) == b"ab,cd,ab"
    assert encoder.restored([b"cd", b"ab", b"fg"]) == b"cdabfg"
    assert encoder.restored([b"ab,", b",cd", b"fg"]) == b"ab,,cdfg"
    assert encoder.asked == [b"ab", b",", b"cd", b"fg"]


def test_the_memory_grows_with_new_words() -> None:
    encoder = BytesAsIds()
    text = b",".join(bytes(97 + (number >> 4 * place) % 16 for place in range(20)) for number in range(10_000))
    assert encoder.restored([b"ab", text, b"ab", text]) == b"ab" + text + b"ab" + text
    assert encoder.restored([b"zz", text, b"ab"]) == b"zz" + text + b"ab"
    assert len(encoder.asked) == 10_003


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "REMEMBERED_BYTES", 10_000)
    encoder = BytesAsIds()
    for number in range(300):
        word = bytes([97 + number % 26, 97 + number // 26])
        assert encoder.restored([word, b"ab"]) == word + b"ab"
        memory = encoder.encode._memory
        assert len(memory._rows) < 60 and memory._used_ids < 130
    assert 300 < len(encoder.asked) < 320


def test_long_documents_are_divided_into_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "SLICE_BYTES", 64)
    monkeypatch.setattr(words, "LONGEST_WORD", 32)
    encoder = BytesAsIds()
    slices: list[Sequence[bytes]] = []
    encode_slice = encoder.encode._encode_slice
    monkeypatch.setattr(encoder.encode, "_encode_slice", lambda texts: slices.append(texts) or encode_slice(texts))
    text = b"abc, defghi. " * 20
    encoded = encoder.encode([text, b"a"])
    assert bytes(encoded.ids.tolist()) == text + b"a"
    assert (encoded.lengths.tolist(), encoded.cut_words) == ([len(text), 1], 0)
    assert len(slices) > 3
    assert all(sum(map(len, texts)) < 64 + 32 and max(map(len, texts)) <= 32 for texts in slices)


@settings(deadline=None, max_examples=100)
@given(
    before=st.lists(st.sampled_from(["a,", "\u4e2d\u6587,", "abcdefg,", ","]), max_size=12).map("".join),
    characters=st.sampled_from(["a", "\u4e2d\u6587\u4e2d", "ab\u4e2d"]),
    repeated=st.integers(0, 60),
    after=st.sampled_from([",a", "\U0001f600"]),
)
@example(before="", characters="a", repeated=32, after="\U0001f600")
@example(before="\u4e2d\u6587,", characters="ab\u4e2d", repeated=50, after=",a")
def test_a_long_word_is_cut_between_characters_wherever_it_stands(
    before: str, characters: str, repeated: int, after: str
) -> None:
    encoder, alone = BytesAsIds(), BytesAsIds()
    word = (characters * repeated).encode()
    text = before.encode() + word + after.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "LONGEST_WORD", 32)
        encoded = encoder.encode([text, b"a"])
        cut_words = alone.encode([word]).cut_words
    assert bytes(encoded.ids.tolist()) == text + b"a"
    assert encoded.cut_words == cut_words == (len(word) > 32)
    parts = [part for part in encoder.asked if len(part) > 8]
    assert parts == [part for part in alone.asked if len(part) > 8]
    assert all(len(part) <= 32 and part.decode() for part in parts)


def test_a_word_of_many_parts_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "LONGEST_WORD", 32)
    documents = [b"a" * 500, b"b,b", b"c" * 40 + b"," + b"d" * 33, b"e" * 32 + b",f"]
    assert BytesAsIds().encode(documents).cut_words == 3


def test_only_encoding_loads_pyarrow_and_a_call_without_texts_does(tmp_path: Path) -> None:
    (tmp_path / "t.model").write_bytes(model_of_kind(KEEPING[0]))
    code = """if True:
        import sys
        from attnres_train.tokenizer.load import load_tokenizer
        tokenizer = load_tokenizer(sys.argv[1])
        assert "pyarrow" not in sys.modules and "tokenizers" not in sys.modules
        assert tokenizer.encode_many([]).lengths.tolist() == []
        assert "pyarrow" in sys.modules
    """
    subprocess.run([sys.executable, "-c", code, tmp_path / "t.model"], check=True)


def test_a_group_is_closed_as_soon_as_it_is_large_enough() -> None:
    assert list(words.groups([2, 2, 3, 1, 5, 1], lambda size: size, 4)) == [[2, 2], [3, 1], [5], [1]]
