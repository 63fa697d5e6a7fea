"""The pair against megatron-core's own builder and reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

from attnres_train.data.indexed import IndexedReader, token_type
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.data.paths import bin_path, idx_path


def random_documents(vocabulary_size: int) -> list[np.ndarray]:
    generator = np.random.default_rng(vocabulary_size)
    lengths = [1, 300, 0, 7, *generator.integers(0, 50, 60)]
    return [generator.integers(0, vocabulary_size, length) for length in lengths]


@pytest.mark.parametrize("vocabulary_size", [300, 65_536, 65_537])
def test_the_files_are_those_of_megatron_byte_for_byte_and_megatron_reads_ours(
    tmp_path: Path, vocabulary_size: int
) -> None:
    documents = random_documents(vocabulary_size)
    builder = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=token_type(vocabulary_size).type)
    for document in documents:
        builder.add_document(torch.from_numpy(document), [len(document)])
    builder.finalize(str(tmp_path / "theirs.idx"))
    with IndexedWriter(tmp_path / "ours", vocabulary_size) as writer:
        writer.add_documents(np.concatenate(documents), np.array([len(document) for document in documents]))
        writer.finish()
        writer.publish()
    for path in (bin_path, idx_path):
        assert path(tmp_path / "ours").read_bytes() == path(tmp_path / "theirs").read_bytes()
    theirs = IndexedDataset(str(tmp_path / "ours"))
    assert len(theirs) == len(documents)
    assert all(np.array_equal(theirs[i], document) for i, document in enumerate(documents))


def test_documents_of_several_sequences_made_by_megatron_are_read(tmp_path: Path) -> None:
    builder = IndexedDatasetBuilder(str(tmp_path / "c.bin"), dtype=np.int32)
    builder.add_document(torch.tensor([1, 2, 3, 4, 5]), [2, 3])
    builder.add_document(torch.tensor([6]), [1])
    builder.finalize(str(tmp_path / "c.idx"))
    reader = IndexedReader(tmp_path / "c")
    assert [reader.document(i).tolist() for i in range(reader.num_documents)] == [[1, 2, 3, 4, 5], [6]]
    assert reader.lengths.tolist() == [2, 3, 1]
    assert reader.window(1, 5).tolist() == [2, 3, 4, 5, 6]
