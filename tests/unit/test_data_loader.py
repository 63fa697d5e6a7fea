"""Batches: labels follow tokens, and a step takes the same samples on any ranks and micro-batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres_train.data.corpus import Cut, TrainingData
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.data.loader import PADDING_ID, Batch, BatchLoader, validation_batches
from attnres_train.data.validation import ValidationData

T = 8


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "c"
    with IndexedWriter(path, 60_000) as writer:
        writer.add_documents(np.arange(170 * T + 1), np.array([170 * T + 1]))
        writer.finish()
        writer.publish()
    return str(path)


@pytest.fixture(scope="module")
def data(prefix: str) -> TrainingData:
    return TrainingData({prefix: 1.0}, Cut(T, 60_000), 1)


def step_ids(data: TrainingData, consumed: int, global_batch: int, micro: int, ranks: int) -> list[str]:
    batches = [
        batch for rank in range(ranks) for batch in BatchLoader(data, global_batch, micro, rank, ranks).step(consumed)
    ]
    return [name for batch in batches for name in batch.sample_ids]


def test_a_batch_has_the_promised_types_and_labels_are_the_next_tokens(data: TrainingData) -> None:
    (batch,) = BatchLoader(data, 4, 4, 0, 1).step(0)
    assert batch.tokens_BT.shape == batch.labels_BT.shape == batch.loss_mask_BT.shape == (4, T)
    assert (batch.tokens_BT.dtype, batch.labels_BT.dtype) == (torch.int64, torch.int64)
    assert batch.loss_mask_BT.dtype == torch.float32 and bool((batch.loss_mask_BT == 1).all())
    assert torch.equal(batch.labels_BT, batch.tokens_BT + 1)
    assert [int(name.split(":")[2]) * T for name in batch.sample_ids] == batch.tokens_BT[:, 0].tolist()


def test_micro_batches_hold_the_documented_positions(data: TrainingData) -> None:
    def names(positions: list[int]) -> tuple[str, ...]:
        return tuple(data.sample(position).sample_id for position in positions)

    batches = BatchLoader(data, 16, 2, 1, 2).step(80)
    assert [batch.sample_ids for batch in batches] == [
        names([82, 83]),
        names([86, 87]),
        names([90, 91]),
        names([94, 95]),
    ]


@settings(deadline=None)
@given(
    consumed=st.integers(0, 1000),
    micro=st.sampled_from([1, 2, 4]),
    ranks=st.sampled_from([1, 2, 3]),
    accumulation=st.integers(1, 3),
)
def test_the_set_of_a_step_depends_on_nothing_but_its_positions(
    data: TrainingData, consumed: int, micro: int, ranks: int, accumulation: int
) -> None:
    global_batch = micro * ranks * accumulation
    expected = [data.sample(position).sample_id for position in range(consumed, consumed + global_batch)]
    assert sorted(step_ids(data, consumed, global_batch, micro, ranks)) == sorted(expected)


def test_resuming_after_five_steps_is_the_same_as_not_stopping(data: TrainingData) -> None:
    unbroken = [step_ids(data, 16 * step, 16, 2, 2) for step in range(10)]
    reopened = TrainingData(data.weights, Cut(T, 60_000), 1)
    resumed = [step_ids(reopened, 16 * step, 16, 2, 2) for step in range(5, 10)]
    assert unbroken[5:] == resumed
    assert len({name for step in unbroken for name in step}) == 160


def test_batch_sizes_that_do_not_divide_are_an_error(data: TrainingData) -> None:
    with pytest.raises(ValueError, match="global batch 10"):
        BatchLoader(data, 10, 2, 0, 2)


@pytest.mark.parametrize("micro, ranks", [(1, 1), (4, 1), (2, 2), (3, 2), (16, 2)])
def test_validation_covers_its_set_once_whatever_the_ranks(prefix: str, micro: int, ranks: int) -> None:
    data = ValidationData({prefix: 1.0}, Cut(T, 60_000), 11)
    by_rank: list[list[Batch]] = [list(validation_batches(data, micro, rank, ranks)) for rank in range(ranks)]
    assert len({len(batches) for batches in by_rank}) == 1
    counted: list[str] = []
    for batch in (batch for batches in by_rank for batch in batches):
        assert batch.tokens_BT.shape == (micro, T)
        for name, mask in zip(batch.sample_ids, batch.loss_mask_BT, strict=True):
            assert mask.tolist() == [0.0 if name == PADDING_ID else 1.0] * T
        counted += [name for name in batch.sample_ids if name != PADDING_ID]
    assert sorted(counted) == sorted(sample.sample_id for sample in data.samples(np.arange(11)))
