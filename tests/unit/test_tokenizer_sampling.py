"""The sample of a corpus: uniform, within its bytes, the same for the same seed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres_train.tokenizer import sampling
from attnres_train.tokenizer.sampling import STRETCH, Sample, stretches_of


def sample_of(texts: list[str], max_bytes: int, seed: int = 1) -> Sample:
    sample = Sample(max_bytes, seed)
    for text in texts:
        sample.add(text)
    return sample


def test_what_fits_is_kept_whole_and_in_order() -> None:
    texts = [f"text {number}" for number in range(200)]
    sample = sample_of(texts, sum(map(len, texts)))
    assert (sample.num_documents(), sample.num_bytes) == (200, sum(map(len, texts)))
    assert list(sample.give()) == texts
    assert list(sample.give()) == []


@settings(deadline=None, max_examples=200)
@given(
    texts=st.lists(st.text("ab\u4e2d", min_size=1, max_size=40), max_size=30),
    max_bytes=st.integers(0, 300),
    seed=st.integers(0, 9),
)
def test_the_smallest_keys_are_kept_as_far_as_they_fit(texts: list[str], max_bytes: int, seed: int) -> None:
    sample = sample_of(texts, max_bytes, seed)
    kept: list[int] = []
    for number in sorted(range(len(texts)), key=sample._key):
        if sum(len(texts[other].encode()) for other in [*kept, number]) > max_bytes:
            break
        kept.append(number)
    part = sample.part(max_bytes // 2)
    assert part == [texts[number] for number in kept][: len(part)]
    assert sum(len(text.encode()) for text in part) <= max_bytes // 2
    assert list(sample.give()) == [texts[number] for number in sorted(kept)]


def test_each_document_is_as_likely_whatever_its_length_and_place() -> None:
    texts = [f"{number:02}" * (1 + number % 2 * 9) for number in range(20)]
    times = dict.fromkeys(texts, 0)
    for seed in range(600):
        for text in sample_of(texts, sum(map(len, texts)) // 2, seed).give():
            times[text] += 1
    assert all(230 < count < 350 for count in times.values()), times


def test_long_documents_are_drawn_in_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "STRETCH", 100)
    sample = sample_of(["x" * 10_000, "short", "y " * 200], 1000)
    assert 1 <= sample.num_documents() <= 3
    assert 900 <= sample.num_bytes <= 1000
    assert all(len(text) <= 100 for text in sample.give())


def test_stretches_of_one_document_are_drawn_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """About half of each of two documents of 50 stretches, never one of them whole and nothing of the other."""
    monkeypatch.setattr(sampling, "STRETCH", 10)
    given = "".join(sample_of(["x" * 500, "y" * 500], 500).give())
    assert min(given.count("x"), given.count("y")) > 150


@settings(deadline=None)
@given(text=st.text(alphabet="ab \n", max_size=60), limit=st.integers(1, 9))
def test_stretches_are_the_text_cut_before_spaces_where_there_are_any(text: str, limit: int) -> None:
    stretches = list(stretches_of(text, limit))
    assert "".join(stretches) == text
    start = 0
    for stretch in stretches[:-1]:
        window = text[start : start + limit + 1]
        spaces = [place for place in range(1, len(window)) if window[place] in " \n"]
        assert len(stretch) == (spaces[-1] if spaces else limit)
        start += len(stretch)


def test_stretches_are_as_long_as_stated() -> None:
    assert [len(stretch) for stretch in stretches_of("x" * (STRETCH + 1), STRETCH)] == [1 << 16, 1]
