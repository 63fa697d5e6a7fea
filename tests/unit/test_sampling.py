"""How the next token is chosen, against transformers' own processors; and text that is told as it comes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnres_train.evaluate.generate import Asked, Text, _take, texts_of
from attnres_train.evaluate.sampling import Sampling, left, next_token, penalised

transformers = pytest.importorskip("transformers", reason="the test extra installs transformers")

LOGITS = st.lists(st.integers(-40, 40), min_size=3, max_size=20).map(lambda xs: torch.tensor(xs) / 8)


def theirs(logits: Tensor, sampling: Sampling, before: Sequence[int]) -> Tensor:
    """By transformers' processors in its order."""
    ids, scores = torch.tensor([list(before)], dtype=torch.long), logits[None].float()
    if sampling.repetition_penalty != 1:
        scores = transformers.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(ids, scores)
    scores = transformers.TemperatureLogitsWarper(sampling.temperature)(ids, scores)
    if sampling.top_k is not None:
        scores = transformers.TopKLogitsWarper(sampling.top_k)(ids, scores)
    if sampling.top_p is not None:
        scores = transformers.TopPLogitsWarper(sampling.top_p)(ids, scores)
    if sampling.min_p is not None:
        scores = transformers.MinPLogitsWarper(sampling.min_p)(ids, scores)
    return scores[0]


@settings(max_examples=60, deadline=None)
@given(
    LOGITS,
    st.floats(0.25, 4.0),
    st.none() | st.integers(1, 25),
    st.none() | st.floats(0.05, 1.0),
    st.none() | st.floats(0.0, 1.0),
    st.sampled_from([1.0, 1.3, 0.7]),
)
def test_what_is_left_is_what_transformers_leaves(
    logits: Tensor, temperature: float, k: int | None, p: float | None, min_p: float | None, penalty: float
) -> None:
    sampling, before = Sampling(temperature, k, p, min_p, penalty), [0, 2, 2]
    mine = left(penalised(logits.float(), before, penalty) / temperature, sampling)
    wanted = theirs(logits, sampling, before)
    assert torch.isfinite(mine).any()
    if p is None or min_p is None:
        assert mine.equal(wanted)
    else:  # rounding of a sum may put a token on the other side
        assert int((mine.isfinite() ^ wanted.isfinite()).sum()) <= 1


def test_a_token_is_drawn_as_often_as_it_is_likely() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.tensor([0.0, 1.0, 2.0])
    drawn = torch.tensor([next_token(logits, [], Sampling(), generator) for _ in range(4000)]).bincount() / 4000
    assert (drawn - logits.softmax(0)).abs().max() < 0.03
    assert next_token(logits, [], Sampling(temperature=0), generator) == 2
    assert next_token(logits, [2], Sampling(temperature=0, repetition_penalty=3.0), generator) == 1


class Bytes:
    """A tokenizer of bytes: characters come in pieces. 256 ends documents."""

    eod_id, vocab_size = 256, 257

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")


def told(prompt: str, follows: list[int], *stop: str, most: int = 100) -> tuple[list[str], Text]:
    asked = Asked(Sampling(), most, seed=0, stop=stop)
    (text,) = texts_of([prompt], Bytes(), asked)  # type: ignore[arg-type]
    pieces = []
    for token in follows:
        pieces.append(_take(text, token, Bytes(), asked))  # type: ignore[arg-type]
        if text.ended is not None:
            break
    return pieces, text


def test_no_character_is_told_in_part() -> None:
    pieces, text = told("a", [*"é€".encode(), 256])
    assert pieces == ["", "é", "", "", "€", ""] and text.ended == "end of document"
    assert text.told == "é€"


def test_a_stop_is_never_told_not_even_its_beginning() -> None:
    pieces, text = told("x", list(b"one##two"), "##")
    assert "".join(pieces) == "one" and text.ended == "stop" and len(text.new_ids) == 5
    pieces, text = told("x", list(b"a#b#"), "##", most=4)
    assert "".join(pieces) == "a#b#" and text.ended == "max tokens"


def test_texts_have_streams_of_their_own() -> None:
    asked = Asked(Sampling(), 5, seed=3, samples=2)
    texts = texts_of(["a", "bc"], Bytes(), asked)  # type: ignore[arg-type]
    seeds = [text.generator.initial_seed() for text in texts]
    assert seeds[:2] == seeds[2:] and seeds[0] != seeds[1]
    (empty,) = texts_of([""], Bytes(), Asked(Sampling(), 5, seed=3))  # type: ignore[arg-type]
    assert empty.ids == [256]
