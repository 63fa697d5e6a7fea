"""Places in a grid and messages, without processes: on any number of stages, odd ones with them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnres_train.parallel.config import ParallelConfig
from attnres_train.parallel.grid import Grid
from attnres_train.parallel.lane import Inbox, Lane, in_batches
from attnres_train.parallel.schedule import Arrival
from attnres_train.parallel.stopwatch import Stopwatch


def group(rank: int, size: int) -> Any:
    return SimpleNamespace(rank=lambda: rank, size=lambda: size)


def place(pipeline: int, rank: int, tensor: int = 1, data: int = 1, virtual: int = 1) -> Grid:
    """By the order in which megatron-core numbers ranks: tensor, then data, then pipeline."""
    groups: Any = SimpleNamespace(
        tp=group(rank % tensor, tensor),
        dp=group(rank // tensor % data, data),
        pp=group(rank // tensor // data, pipeline),
    )
    parallel = ParallelConfig(tensor=tensor, pipeline=pipeline, virtual=virtual)
    lanes: Any = None
    return Grid(parallel, tensor * data * pipeline, rank, torch.device("cpu"), groups, lanes, lanes)


def test_every_replica_has_one_owner_of_the_loss() -> None:
    owners = [rank for rank in range(12) if place(3, rank, tensor=2, data=2).owns_loss]
    assert owners == [8, 10]
    speakers = [rank for rank in range(12) if place(3, rank, tensor=2, data=2).speaks_for_replica]
    assert speakers == [0, 2], "of the first stage, which reads the samples"
    assert [rank for rank in range(12) if place(3, rank, tensor=2, data=2).counts_whole] == list(range(0, 12, 2))
    assert [rank for rank in range(12) if place(3, rank, tensor=2, data=2).keeps_run] == [0]


def test_chunks_go_round_the_ranks() -> None:
    assert [place(3, rank, virtual=2).stages() for rank in range(3)] == [[0, 3], [1, 4], [2, 5]]
    assert place(2, 1, virtual=3).stages() == [1, 3, 5]


class Work:
    """A send that is through when told so."""

    def __init__(self) -> None:
        self.waited = 0

    def is_completed(self) -> bool:
        return False

    def wait(self) -> None:
        self.waited += 1


def lane_of(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int | None, max_leaving: int) -> tuple[Lane, list[Work]]:
    works: list[Work] = []

    def batch(operations: list[Any]) -> list[Work]:
        mine = [Work() for _ in operations]
        works.extend(mine)
        return mine

    fake = SimpleNamespace(P2POp=lambda *_: None, isend=None, irecv=None, batch_isend_irecv=batch)
    monkeypatch.setattr("attnres_train.parallel.lane.dist", fake)
    groups: Any = (None, None)
    return Lane(1, 1, groups, chunk_bytes, max_leaving, Stopwatch(torch.device("cpu"))), works


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_message_is_larger_than_a_chunk_and_none_is_smaller_than_it_need_be(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane, _ = lane_of(monkeypatch, 1000, 9)
    sent = lane.send([torch.zeros(7, 3, 50, dtype=dtype)])
    sizes = [message.numel() * message.element_size() for message in sent.messages]
    assert sum(sizes) == 7 * 3 * 50 * dtype.itemsize and max(sizes) == 1000
    assert len(sizes) == -(-sum(sizes) // 1000)


def test_as_many_sends_are_under_way_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    lane, works = lane_of(monkeypatch, None, 2)
    for count in range(1, 5):
        lane.send([torch.zeros(1)])
        assert [work.waited for work in works] == [1] * max(0, count - 2) + [0] * min(count, 2)


@pytest.mark.parametrize("messages", [1, 127, 128, 129, 1000])
def test_messages_go_together_up_to_a_limit(messages: int) -> None:
    numbers = list(torch.zeros(messages))
    batches = list(in_batches(numbers))
    assert [each for batch in batches for each in batch] == numbers
    assert {len(batch) for batch in batches[:-1]} <= {128} and 1 <= len(batches[-1]) <= 128


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_messages_are_taken_in_the_planned_order_however_many_are_posted_ahead(ahead: int) -> None:
    order = [Arrival(number, 2) for number in range(5)]
    lane, pool = SimpleNamespace(receive=lambda tensors: None), SimpleNamespace(take=lambda: torch.zeros(1))
    inbox = Inbox(lane, pool, order, lambda arrival: 1, ahead)  # type: ignore[arg-type]
    taken = []
    while (message := inbox.next()) is not None:
        taken.append(message.arrival)
        assert inbox.left() == order[len(taken) :], "none is lost, and none is told twice"
    assert taken == order
