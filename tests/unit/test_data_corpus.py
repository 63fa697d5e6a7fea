"""Samples cut from pairs: windows, identity, epochs, and the checks at open."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnres_train.data.corpus import Corpus, Cut, TrainingData
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.data.manifest import Manifest
from attnres_train.data.validation import ValidationData
from attnres_train.errors import Refused

T = 8
FINGERPRINT = "a" * 64


def write(prefix: Path, num_tokens: int, vocabulary_size: int = 60_000, known: bool = True, first: int = 0) -> str:
    """A pair whose token at place i is `first` + i, in documents of 5 tokens; returns its prefix."""
    with IndexedWriter(prefix, vocabulary_size) as writer:
        lengths = np.diff([*range(0, num_tokens, 5), num_tokens])
        writer.add_documents(np.arange(first, first + num_tokens), lengths)
        facts = writer.finish()
        manifest = Manifest(
            tokenizer_fingerprint=FINGERPRINT,
            vocabulary_size=vocabulary_size,
            eod_id=1,
            text_bytes=num_tokens,
            sources=(),
            options={},
            tool_version="test",
            **vars(facts),
        )
        writer.publish(manifest.to_json() if known else None)
    return str(prefix)


def training(weights: dict[str, float], seed: int = 1) -> TrainingData:
    return TrainingData(weights, Cut(T, 60_000, FINGERPRINT), seed)


def ids(data: TrainingData, start: int, stop: int) -> list[str]:
    return [sample.sample_id for sample in data.samples(np.arange(start, stop))]


def test_samples_are_windows_that_overlap_by_one_token_and_cover_the_stream(tmp_path: Path) -> None:
    corpus = Corpus(write(tmp_path / "c", 4 * T + 3), Cut(T, 60_000))
    assert corpus.num_samples == 4
    windows = [corpus.sample(i).tolist() for i in range(4)]
    assert windows == [list(range(i * T, i * T + T + 1)) for i in range(4)]


@pytest.mark.parametrize("num_tokens, num_samples", [(T + 1, 1), (2 * T, 1), (2 * T + 1, 2)])
def test_the_number_of_samples_is_what_fits(tmp_path: Path, num_tokens: int, num_samples: int) -> None:
    corpus = Corpus(write(tmp_path / "c", num_tokens), Cut(T, 60_000))
    assert corpus.num_samples == num_samples
    assert corpus.sample(num_samples - 1)[-1] == num_samples * T
    with pytest.raises(IndexError):
        corpus.sample(num_samples)


def test_a_corpus_shorter_than_one_sample_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="holds 8 tokens; one sample needs 9"):
        Corpus(write(tmp_path / "c", T), Cut(T, 60_000))


def test_another_tokenizer_is_refused_by_fingerprint_and_by_largest_id(tmp_path: Path) -> None:
    prefix = write(tmp_path / "c", 320)
    with pytest.raises(Refused) as refused:
        Corpus(prefix, Cut(T, 256, "b" * 64))
    assert [problem.message.split()[0] for problem in refused.value.problems] == ["made", "the"]
    assert FINGERPRINT in str(refused.value) and "b" * 64 in str(refused.value)
    assert "319 is not below the vocabulary size 256" in str(refused.value)
    with pytest.raises(Refused, match="made with tokenizer"):
        Corpus(prefix, Cut(T, 60_000, "b" * 64))
    with pytest.raises(Refused, match="largest id 319"):
        Corpus(prefix, Cut(T, 319))
    assert Corpus(prefix, Cut(T, 320, FINGERPRINT)).num_samples == 39


def test_a_pair_without_manifest_is_checked_as_it_is_read(tmp_path: Path) -> None:
    corpus = Corpus(write(tmp_path / "c", 320, known=False), Cut(T, 256, "b" * 64))
    assert corpus.sample(30)[-1] == 248
    with pytest.raises(Refused, match="sample 31.*holds id 256"):
        corpus.sample(31)


def test_every_epoch_holds_every_sample_once_in_another_order(tmp_path: Path) -> None:
    data = training({write(tmp_path / "c", 50 * T + 1): 1.0})
    first, second = ids(data, 0, 50), ids(data, 50, 100)
    assert sorted(first) == sorted(f"0:e0:{i}" for i in range(50))
    assert sorted(second) == sorted(f"0:e1:{i}" for i in range(50))
    assert [name.split(":")[2] for name in first] != [name.split(":")[2] for name in second]
    assert ids(data, 0, 50) != ids(training(data.weights, seed=2), 0, 50)


def test_a_sample_id_names_the_tokens(tmp_path: Path) -> None:
    data = training({write(tmp_path / "c", 50 * T + 1): 1.0})
    for position in (0, 7, 49, 50, 1234):
        sample = data.sample(position)
        index = int(sample.sample_id.split(":")[2])
        assert sample.tokens.tolist() == list(range(index * T, index * T + T + 1))
        assert sample.tokens.dtype == np.int64


@pytest.mark.parametrize("weights, total, due", [((0.999, 0.001), 1000, (999, 1)), ((3, 1), 400, (300, 100))])
def test_extreme_blends_wrap_each_source_into_its_own_epochs(
    tmp_path: Path, weights: tuple[float, float], total: int, due: tuple[int, int]
) -> None:
    prefixes = [write(tmp_path / name, 50 * T + 1) for name in "ab"]
    data = training(dict(zip(prefixes, weights, strict=True)))
    drawn = ids(data, 0, total)
    assert len(set(drawn)) == total
    for source in (0, 1):
        mine = [name for name in drawn if name.startswith(f"{source}:")]
        assert abs(len(mine) - due[source]) <= 1
        whole_epochs = len(mine) // 50
        for epoch in range(whole_epochs):
            assert sorted(mine[50 * epoch : 50 * epoch + 50]) == sorted(f"{source}:e{epoch}:{i}" for i in range(50))
        assert all(f":e{whole_epochs}:" in name for name in mine[50 * whole_epochs :])
    summary = data.summary(total)
    assert [(source.draws, source.samples) for source in summary] == [(due[0], 50), (due[1], 50)]
    assert [source.epochs for source in summary] == [due[0] / 50, due[1] / 50]
    for source, draws in zip(summary, due, strict=True):
        told = f"{source.prefix}: 401 tokens, 50 samples; draws {draws}, epochs {draws / 50:.2f}"
        assert str(source) == told, "a start-up prints this"


def test_two_corpora_of_equal_size_are_shuffled_differently(tmp_path: Path) -> None:
    data = training({write(tmp_path / name, 50 * T + 1): 1.0 for name in "ab"})
    orders = [[name.split(":")[2] for name in ids(data, 0, 100) if name.startswith(source)] for source in "01"]
    assert sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]


def test_a_source_of_weight_zero_is_not_opened_and_reported_as_unused(tmp_path: Path) -> None:
    used, unused = write(tmp_path / "a", 50 * T + 1), str(tmp_path / "missing")
    data = training({unused: 0.0, used: 2.0})
    assert set(name.split(":")[0] for name in ids(data, 0, 60)) == {"1"}
    summary = data.summary(60)[0]
    assert (summary.prefix, summary.samples, summary.draws, summary.epochs) == (unused, None, 0, 0.0)
    assert str(summary) == f"{unused}: weight 0, unused"


def test_the_problems_of_all_corpora_are_refused_at_once(tmp_path: Path) -> None:
    short, missing = write(tmp_path / "short", 3), str(tmp_path / "missing")
    with pytest.raises(Refused) as refused:
        training({short: 1.0, missing: 1.0})
    assert [problem.key for problem in refused.value.problems] == [short, missing]


def test_the_fingerprint_tells_other_data_seed_and_weights_apart(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 401), write(tmp_path / "b", 409)
    (tmp_path / "copy").mkdir()
    copy = write(tmp_path / "copy" / "a", 401)
    reference = training({a: 1.0}).fingerprint
    assert training({copy: 1.0}).fingerprint == reference
    others = [training({b: 1.0}), training({a: 1.0}, seed=2), training({a: 1.0, b: 1.0})]
    assert len({reference, *(other.fingerprint for other in others)}) == 4


def test_other_tokens_of_the_same_number_and_lengths_have_another_fingerprint(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 401), write(tmp_path / "b", 401, first=1)
    one, other = Corpus(a, Cut(T, 60_000)), Corpus(b, Cut(T, 60_000))
    held = "81:401:uint16"
    assert one.fingerprint == f"{held}:{hashlib.sha256(Path(f'{a}.bin').read_bytes()).hexdigest()}"
    assert other.fingerprint == f"{held}:{hashlib.sha256(Path(f'{b}.bin').read_bytes()).hexdigest()}"
    assert Corpus(write(tmp_path / "c", 401, known=False), Cut(T, 60_000)).fingerprint == f"{held}:unknown"


def test_validation_is_fixed_spread_over_the_corpus_and_never_larger_than_it(tmp_path: Path) -> None:
    prefix = write(tmp_path / "c", 40 * T + 1)
    data = ValidationData({prefix: 1.0}, Cut(T, 60_000, FINGERPRINT), 4)
    assert [sample.sample_id for sample in data.samples(np.arange(4))] == [
        "0:e0:0",
        "0:e0:10",
        "0:e0:20",
        "0:e0:30",
    ]
    everything = ValidationData({prefix: 1.0}, Cut(T, 60_000, FINGERPRINT), 1000)
    assert len(everything) == 40
    assert [sample.tokens[0] for sample in everything.samples(np.arange(40))] == list(range(0, 40 * T, T))


def test_validation_sources_share_the_set_by_weight(tmp_path: Path) -> None:
    weights = {write(tmp_path / "a", 40 * T + 1): 3.0, write(tmp_path / "b", 40 * T + 1): 1.0}
    data = ValidationData(weights, Cut(T, 60_000, FINGERPRINT), 16)
    names = [sample.sample_id for sample in data.samples(np.arange(len(data)))]
    assert sum(name.startswith("0:") for name in names) == 12
    assert len(set(names)) == 16


def test_tokens_a_byte_of_a_set_are_a_mean_over_its_samples(tmp_path: Path) -> None:
    """Six samples of a corpus of two bytes a token, two of one of four: (6 / 2 + 2 / 4) / 8."""
    weights = {write(tmp_path / "a", 10 * T + 1): 3.0, write(tmp_path / "b", 10 * T + 1): 1.0}
    for prefix, bytes_a_token in zip(weights, (2, 4), strict=True):
        manifest = Corpus(prefix, Cut(T, 60_000)).manifest
        assert manifest is not None
        Path(f"{prefix}.json").write_bytes(replace(manifest, text_bytes=bytes_a_token * manifest.tokens).to_json())
    assert ValidationData(weights, Cut(T, 60_000), 8).tokens_per_byte == 3.5 / 8


def test_a_manifest_that_belongs_to_another_pair_is_refused(tmp_path: Path) -> None:
    prefix = write(tmp_path / "c", 100)
    manifest = Corpus(prefix, Cut(T, 60_000)).manifest
    assert manifest is not None
    Path(f"{prefix}.json").write_bytes(replace(manifest, tokens=99).to_json())
    with pytest.raises(Refused, match="the pair holds"):
        Corpus(prefix, Cut(T, 60_000))
