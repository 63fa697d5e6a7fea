"""Copies beside what is computed: what waits for what, told by a side that keeps an account."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from attnres_train.config.run_config import RunConfig
from attnres_train.parallel.grid import build_grid
from attnres_train.parallel.offload import HostOffload
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import tiny_config
from tests.distributed.training import build_tiny, step_tiny


class Account:
    """A stand-in for a stream: what was asked of it, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._marks = 0

    def after_compute(self) -> None:
        self.log.append("after compute")

    @contextmanager
    def copying(self) -> Iterator[None]:
        self.log.append("copy")
        yield

    def mark(self) -> int:
        self._marks += 1
        self.log.append(f"mark {self._marks}")
        return self._marks

    def before_compute(self, mark: int) -> None:
        self.log.append(f"compute waits for {mark}")

    def reads(self, tensor: Tensor) -> None:
        assert tensor.untyped_storage().nbytes(), "told before the memory is given up"
        self.log.append("reads")

    def take(self) -> list[str]:
        log, self.log = self.log, []
        return log


def test_copies_wait_for_what_made_them_and_readers_for_copies() -> None:
    account = Account()
    offload = HostOffload(account)
    one, two = torch.arange(5.0), torch.arange(3.0)
    shared = one[1:3]
    offload.park([one, two, shared])
    assert account.take() == ["after compute", "copy", "reads", "copy", "reads"]
    assert (one.untyped_storage().nbytes(), offload.parked_bytes) == (0, 32)
    offload.bring([shared])
    assert account.take() == ["after compute", "copy", "mark 1"], "which may still use what the memory was before"
    offload.park([one])
    assert account.take() == [], "what is on its way back stays"
    offload.bring([one])
    assert account.take() == []
    offload.fetch([one, two])
    assert account.take() == ["after compute", "copy", "mark 2", "compute waits for 1", "compute waits for 2"]
    assert one.equal(torch.arange(5.0)) and two.equal(torch.arange(3.0)) and shared.equal(torch.tensor([1.0, 2.0]))
    offload.fetch([one, two, shared])
    assert account.take() == [] and offload.parked_bytes == 0


def backwards_of_a_step(config: RunConfig) -> list[list[str]]:
    """What is asked of the side in each backward visit of this rank, in order."""
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    cache, account = parts.pipeline.communicator.cache, Account()
    cache.offload = HostOffload(account)
    visits: list[list[str]] = []
    wanted, arrive = cache.wanted, cache.arrive

    def told(*visit: Any) -> None:
        if visits:
            visits[-1] += account.take()
        else:
            account.take()
        visits.append([])
        wanted(*visit)

    def forward(*arguments: Any) -> Any:
        """Of a later stage, which reads at once what the rank holds."""
        if visits:
            visits[-1] += account.take()
        history = arrive(*arguments)
        account.take()
        return history

    cache.arrive = forward  # type: ignore[method-assign]
    cache.wanted = told  # type: ignore[method-assign]
    step_tiny(parts, config, grid, 0)
    return visits


def test_what_a_backward_needs_is_begun_one_visit_before() -> None:
    config = tiny_config("block", layers=6, pipeline=2, virtual=2, history_cache="off", offload=True)
    ahead = 0
    for visits in run_ranks(backwards_of_a_step, 2, config):
        made = {word: number for number, visit in enumerate(visits) for word in visit if word.startswith("mark")}
        waits = [
            (number, made[f"mark {word.rpartition(' ')[2]}"])
            for number, visit in enumerate(visits)
            for word in visit
            if word.startswith("compute waits")
        ]
        assert all(made_in == number - 1 for number, made_in in waits if number), waits
        ahead += sum(number > 0 for number, _ in waits)
    assert ahead
