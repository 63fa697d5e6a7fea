"""The report on encoding and decoding: its counts, against counting by hand."""

from __future__ import annotations

import pytest

from attnres_train.tokenizer import loss
from attnres_train.tokenizer.loss import check_round_trip
from attnres_train.tokenizer.sentencepiece import SentencePieceTokenizer
from attnres_train.tokenizer.training import TrainingOptions, train_model
from tests.unit.tokenizer_models import TEXTS, bare_model

CHECKED = [TEXTS[0], "a\u2581b", "\u0416\u0416", "", TEXTS[2], "banana and\u2581"]


@pytest.mark.parametrize("batch_characters", [1, 1 << 20])
def test_the_counts_are_right(monkeypatch: pytest.MonkeyPatch, batch_characters: int) -> None:
    monkeypatch.setattr(loss, "BATCH_CHARACTERS", batch_characters)
    tokenizer = SentencePieceTokenizer(train_model(TEXTS, TrainingOptions(vocab_size=340)))
    found = check_round_trip(tokenizer, iter(CHECKED))
    ids = [index for text in CHECKED for index in tokenizer.encode(text)]
    assert (found.texts, found.characters) == (6, sum(map(len, CHECKED)))
    assert (found.text_bytes, found.tokens) == (len("".join(CHECKED).encode()), len(ids))
    assert (found.pieces_used, found.unknown_tokens) == (len(set(ids)), 0)
    assert found.byte_tokens == 4
    assert (found.differing, found.differing_with_space_sign) == (2, 2)


def test_text_that_does_not_come_back_is_counted() -> None:
    found = check_round_trip(SentencePieceTokenizer(bare_model()), ["a  b", "an and", "\u0416\u2581"])
    assert (found.differing, found.differing_with_space_sign, found.unknown_tokens) == (2, 1, 1)
