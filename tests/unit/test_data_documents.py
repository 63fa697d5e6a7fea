"""Where the documents of a sample begin, and pairs that do not say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from attnres_train.corpora import open_corpora
from attnres_train.data.config import DataConfig
from attnres_train.data.corpus import Cut, TrainingData
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.data.loader import BatchLoader, validation_batches
from attnres_train.data.manifest import Manifest
from attnres_train.data.validation import ValidationData
from attnres_train.errors import Refused
from tests.unit.config_files import small

T, EOD, VOCABULARY = 8, 2, 320
# Of the documents, their end included: one ends with the first window, one is longer than a window, some are empty.
LENGTHS = np.array([5, 4, 1, 1, 20, 2, 8, 1, 7, 16])


def write(prefix: Path, eod_id: int | None = EOD, known: bool = True) -> str:
    tokens = np.random.default_rng(1).integers(3, VOCABULARY, LENGTHS.sum())
    tokens[LENGTHS.cumsum() - 1] = EOD
    with IndexedWriter(prefix, VOCABULARY) as writer:
        writer.add_documents(tokens, LENGTHS)
        manifest = Manifest(
            tokenizer_fingerprint="a" * 64,
            vocabulary_size=VOCABULARY,
            eod_id=eod_id,
            text_bytes=1,
            sources=(),
            options={},
            tool_version="test",
            **vars(writer.finish()),
        )
        writer.publish(manifest.to_json() if known else None)
    return str(prefix)


def begun_before(places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Documents that end at or before each place of the stream, told by the lengths in the index."""
    return np.searchsorted(LENGTHS.cumsum() - 1, places, side="right")


def test_a_document_begins_at_the_end_token_before_it(tmp_path: Path) -> None:
    data = TrainingData({write(tmp_path / "c"): 1.0}, Cut(T, VOCABULARY, isolate_documents=True), 1)
    assert data.corpora[0].num_samples == 8
    documents = []
    for sample in data.samples(np.arange(8)):
        assert sample.segments is not None and sample.segments.dtype == np.int32
        places = int(sample.sample_id.split(":")[2]) * T + np.arange(T)
        expected = begun_before(places)
        before = expected[0] - (sample.tokens[0] == EOD)
        assert sample.segments.tolist() == (expected - before).tolist()
        assert ((sample.tokens[:-1] == EOD) == np.diff(sample.segments, prepend=0)).all()
        documents.append(len(set(sample.segments)))
    assert {1, 2, 3} <= set(documents), "the windows must hold one document, and several"


def test_documents_are_told_apart_in_batches_only_if_asked_for(tmp_path: Path) -> None:
    prefix = write(tmp_path / "c")
    for isolate in (False, True):
        train = TrainingData({prefix: 1.0}, Cut(T, VOCABULARY, isolate_documents=isolate), 1)
        valid = ValidationData({prefix: 1.0}, Cut(T, VOCABULARY, isolate_documents=isolate), 5)
        for batch in [*BatchLoader(train, 4, 2, 0, 1).step(0), *validation_batches(valid, 2, 0, 1)]:
            if isolate:
                assert batch.segments_BT is not None
                assert batch.segments_BT.tolist() == (batch.tokens_BT == EOD).cumsum(1).tolist()
            else:
                assert batch.segments_BT is None


@pytest.mark.parametrize(
    ("eod_id", "known", "why"), [(None, True, r"was made without one \(--no-eod\)"), (EOD, False, "has no manifest")]
)
def test_a_pair_that_marks_no_documents_is_refused_with_the_remedy(
    tmp_path: Path, eod_id: int | None, known: bool, why: str
) -> None:
    prefix, good = write(tmp_path / "c", eod_id, known), write(tmp_path / "good")
    for kind in (TrainingData, ValidationData):
        with pytest.raises(Refused, match=why) as refused:
            kind({good: 1.0, prefix: 1.0}, Cut(T, VOCABULARY, isolate_documents=True), 1)
        assert [problem.key for problem in refused.value.problems] == [prefix]
        assert "data.isolate_documents = false" in refused.value.problems[0].remedy
        kind({good: 1.0, prefix: 0.0}, Cut(T, VOCABULARY, isolate_documents=True), 1)
        kind({good: 1.0, prefix: 1.0}, Cut(T, VOCABULARY), 1)


def test_the_setting_reaches_the_corpora_of_a_run(tmp_path: Path) -> None:
    config = small(tmp_path, "--training.sequence_length", str(T))
    prefix = write(tmp_path / "c")
    for isolate in (False, True):
        corpora = open_corpora(replace(config, data=DataConfig(train=prefix, valid=prefix, isolate_documents=isolate)))
        for data in (corpora.train, corpora.valid[""]):
            assert (data.samples(np.arange(1))[0].segments is not None) == isolate
