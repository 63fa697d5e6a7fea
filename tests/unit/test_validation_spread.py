"""Which samples of its corpora a validation set takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attnres_train.data.corpus import Cut
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.data.validation import ValidationData


def pair(prefix: Path, samples: int) -> str:
    """As many samples of four tokens."""
    with IndexedWriter(prefix, 1000) as writer:
        writer.add_documents(np.arange(4 * samples + 1), np.array([4 * samples + 1]))
        writer.finish()
        writer.publish()
    return str(prefix)


def test_samples_are_spread_evenly_over_every_source(tmp_path: Path) -> None:
    sets = {pair(tmp_path / "a", 10): 3.0, pair(tmp_path / "b", 9): 1.0}
    data = ValidationData(sets, Cut(4, 1000), 8)
    ids = [sample.sample_id for sample in data.samples(np.arange(len(data)))]
    assert ids == [f"0:e0:{index}" for index in (0, 1, 3, 5, 6, 8)] + ["1:e0:0", "1:e0:4"]
