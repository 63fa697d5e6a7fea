"""NCCL's rules (tests/nccl_rules.py): pipelines keep them and train to the same numbers, and what breaks them is named.

`pytest --nccl-rules tests/distributed` lays them over the other tests of several ranks.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from attnres_train.parallel import grid as grid_module
from attnres_train.parallel import lanes as lanes_module
from attnres_train.parallel.cache import HistoryCache
from attnres_train.parallel.lane import Lane, Transfer
from tests import nccl_rules
from tests.distributed import ranks
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import tiny_config
from tests.distributed.training import Trained, relative_error, train_all

STEPS = 2
TRANSPORTS: list[dict[str, Any]] = [
    {"history_cache": "off", "eager": False},
    {"history_cache": "off", "eager": True},
    {"history_cache": "on", "eager": False},
    {"history_cache": "on", "eager": True},
]


@pytest.fixture(autouse=True)
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "Meeting", nccl_rules.Meeting)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is going to hang."""
    monkeypatch.setattr(nccl_rules, "LIMIT_SECONDS", 2.5)


def pipelines(pipeline: int, virtual: int, layers: int) -> list[Any]:
    grid = {"pipeline": pipeline, "virtual": virtual, "micro_batch_group": 4 if virtual > 1 else None}
    return [tiny_config("block", layers=layers, **grid, **transport) for transport in TRANSPORTS]


@functools.cache
def one_process(layers: int) -> Trained:
    return run_ranks(train_all, 1, [tiny_config("block", layers=layers)], STEPS)[0][0]


def agrees(pipeline: int, virtual: int) -> None:
    layers = max(4, pipeline * virtual)
    reference = one_process(layers)
    for trained in run_ranks(train_all, pipeline, pipelines(pipeline, virtual, layers), STEPS)[0]:
        assert trained.losses == pytest.approx(reference.losses, rel=1e-5)
        assert trained.grad_norms == pytest.approx(reference.grad_norms, rel=1e-5)
        for name, gradient in reference.first_gradients.items():
            assert relative_error(trained.first_gradients[name], gradient) < 1e-5, name


@pytest.mark.parametrize(("pipeline", "virtual"), [(2, 1), (3, 1), (3, 2), (4, 1)])
def test_pipelines_keep_the_rules(pipeline: int, virtual: int) -> None:
    agrees(pipeline, virtual)


@pytest.mark.slow
@pytest.mark.parametrize(("pipeline", "virtual"), [(2, 2), (2, 4), (3, 3), (4, 2), (4, 3), (4, 4), (8, 1)])
def test_more_pipelines_keep_the_rules(pipeline: int, virtual: int) -> None:
    agrees(pipeline, virtual)


def hang(pipeline: int, virtual: int, eager: bool) -> str:
    config = pipelines(pipeline, virtual, pipeline * virtual)[int(eager)]
    with pytest.raises(AssertionError, match="hangs:") as caught:
        run_ranks(train_all, pipeline, [config], 1)
    return str(caught.value).partition("hangs:\n")[2]


@pytest.mark.usefixtures("impatient")
def test_communicators_that_form_in_the_middle_of_a_schedule_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_module, "connect", lambda *_: None)
    table = hang(3, 1, eager=False)
    assert re.search(r"^0 +forward lane 0 \[0, 1, 2\] +forms its communicator +rank 2$", table, re.M)
    assert re.search(r"^2 +forward lane 1 \[0, 1, 2\] +forms its communicator +rank 0$", table, re.M)


@pytest.mark.usefixtures("impatient")
def test_two_lanes_in_an_odd_ring_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "colours_of", lambda *_: 2)
    assert re.search(r"^0 +(for|back)ward lane 0 .*  receive from rank", hang(3, 2, eager=True), re.M)


@pytest.mark.usefixtures("impatient")
def test_swapped_lanes_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    of = lanes_module.Lanes.of
    monkeypatch.setattr(lanes_module.Lanes, "of", lambda self, rank, *rest: of(self, rank, *rest)[:: 1 if rank else -1])
    assert "rank 0" in hang(4, 1, eager=False)


def test_sources_that_are_sent_ahead_are_operations_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Lane._begin

    def together(self: Lane, *arguments: Any) -> Transfer:
        self.apart = False
        return begin(self, *arguments)

    monkeypatch.setattr(Lane, "_begin", together)
    with pytest.raises(AssertionError, match="1 messages are sent together by rank 0, and . are received together"):
        run_ranks(train_all, 2, [tiny_config("full", layers=8, pipeline=2, eager=True)], 1)


def test_a_buffer_returned_a_visit_early_is_a_wrong_number(monkeypatch: pytest.MonkeyPatch) -> None:
    end = HistoryCache.end

    def early(self: HistoryCache, micro_batch: int, stage: int) -> None:
        end(self, micro_batch, stage)
        if stage:
            self.pool.give(self._in_flight[micro_batch, stage].received)

    monkeypatch.setattr(HistoryCache, "end", early)
    with pytest.raises(AssertionError):
        agrees(3, 1)


def of_the_rules(rank_function: Callable[[int], Any], world: int) -> list[Any]:
    return run_ranks(functools.partial(_on_rank, rank_function), world)


def _on_rank(function: Callable[[int], Any]) -> Any:
    return function(dist.get_rank())


def exchange(way: Any, tensor: torch.Tensor, peer: int, group: Any = None) -> Any:
    (work,) = dist.batch_isend_irecv([dist.P2POp(way, tensor, peer, group)])
    return work


def late_and_early(rank: int) -> tuple[float, bool, float]:
    """What a send that was overwritten brings, whether a posted receive keeps its memory, the wait of the host."""
    dist.barrier()
    number = torch.ones(1)
    if rank == 1:
        time.sleep(1)
    began = time.monotonic()
    work = exchange(dist.isend, number, 1) if rank == 0 else exchange(dist.irecv, number, 0)
    waited, kept = time.monotonic() - began, bool(number.isnan().any())
    if rank == 0:
        number.fill_(7)
    work.wait()
    return number.item(), kept, waited


def test_sends_read_late_receives_write_early_and_a_first_exchange_waits_for_the_peer() -> None:
    (_, _, waited), (brought, poisoned, _) = of_the_rules(late_and_early, 2)
    assert brought == 7 and poisoned
    assert waited > 0.5


def crossed(rank: int) -> None:
    """Each receives before it sends, on one communicator."""
    dist.barrier()
    other, number = 1 - rank, torch.ones(1)
    dist.batch_isend_irecv([dist.P2POp(way, number, other) for way in (dist.isend, dist.irecv)])[0].wait()
    receive = exchange(dist.irecv, torch.ones(1), other)
    exchange(dist.isend, torch.ones(1), other)
    receive.wait()


def crossed_in_groups_of_their_own(rank: int) -> None:
    there, back = dist.new_group(), dist.new_group()
    for group in (there, back):
        dist.barrier(group)
    first, second = (there, back) if rank else (back, there)
    for _ in range(2):
        both = [(dist.irecv, first), (dist.isend, second)][:: 1 if rank else -1]
        for work in [exchange(way, torch.ones(1), 1 - rank, group) for way, group in both]:
            work.wait()


def test_operations_of_a_communicator_stand_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    of_the_rules(crossed_in_groups_of_their_own, 2)
    monkeypatch.setattr(nccl_rules, "LIMIT_SECONDS", 2.0)
    with pytest.raises(AssertionError, match=r"receive from rank \d +runs: receive from rank \d"):
        of_the_rules(crossed, 2)


def two_of_three(rank: int) -> None:
    if rank < 2:
        exchange(dist.isend if rank == 0 else dist.irecv, torch.ones(1), 1 - rank).wait()
    else:
        time.sleep(4)


def test_a_first_batch_waits_for_every_rank_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_rules, "LIMIT_SECONDS", 2.0)
    with pytest.raises(AssertionError, match=r"forms its communicator +rank 2") as caught:
        of_the_rules(two_of_three, 3)
    assert re.search(r"2 +- +computes, or is done", str(caught.value))


def two_for_one(rank: int) -> None:
    """Two messages in one operation meet two operations of one message."""
    dist.barrier()
    numbers = [torch.ones(1), torch.ones(1)]
    if rank == 0:
        dist.batch_isend_irecv([dist.P2POp(dist.isend, number, 1) for number in numbers])[0].wait()
    else:
        for number in numbers:
            exchange(dist.irecv, number, 0).wait()


def tagged(_: int) -> None:
    dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(1), 1, tag=3)])


def from_anyone(_: int) -> None:
    dist.recv(torch.ones(1))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (tagged, "no tags"),
        (from_anyone, "no receive from anyone"),
        (two_for_one, "2 messages are sent together by rank 0, and 1 are received together"),
    ],
)
def test_what_nccl_has_not_is_refused(function: Callable[[int], None], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        of_the_rules(function, 2)
