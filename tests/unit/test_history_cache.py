"""The depth history of all ranks, driven by hand in one process, against one process without a pipeline."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnres_train.depth.history import History
from attnres_train.depth.layout import DepthLayout
from attnres_train.depth.source import Source
from attnres_train.parallel.cache import HistoryCache, HistoryError
from attnres_train.parallel.offload import HostOffload
from attnres_train.parallel.pool import BufferPool
from attnres_train.parallel.schedule import Schedule
from attnres_train.parallel.wire import WirePlan
from tests.unit.test_pipeline_schedule import moves, peak_and_rest
from tests.unit.test_wire import plans, readers, variants

SHAPE = (2, 1, 3)


class Toy:
    """A network of sublayers tanh(W mix), the mix by constants of each reader. `spoiled` readers break the rules."""

    def __init__(self, layout: DepthLayout, dtype: torch.dtype):
        random, everyone = torch.Generator().manual_seed(0), range(layout.num_sublayers + 1)

        def parameter(*shape: int) -> Tensor:
            return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype).requires_grad_()

        self.layout, self.dtype = layout, dtype
        self.weights = [parameter(SHAPE[-1], SHAPE[-1]) for _ in everyone]
        self.scores = [parameter(layout.reads(reader).count) for reader in everyone]
        self.batch = 0
        self.spoiled: dict[tuple[int, int, int], str] = {}

    def start(self, batch: int) -> History:
        tokens = torch.linspace(-1, 1 + batch, 6, dtype=self.dtype).view(SHAPE)
        return History.start((tokens @ self.weights[-1]).tanh(), self.layout)

    def sublayer(self, number: int, history: History) -> History:
        output = (self.mix(number, history) @ self.weights[number]).tanh()
        return history.add(output, self.layout.completes_block(number))

    def mix(self, reader: int, history: History) -> Tensor:
        reads = self.layout.reads(reader)
        numbers = (*reads.sources, *([-1] if reads.partial else []))
        values = [self.tap(reader, *pair) for pair in zip(numbers, history.read(reads), strict=True)]
        return torch.einsum("n,n...->...", self.scores[reader].softmax(0), torch.stack(values))

    def tap(self, reader: int, number: int, source: Source) -> Tensor:
        how = self.spoiled.get((self.batch, reader, number))
        if how == "twice":
            return source.tap() + 0 * source.tap()
        return source.value.detach() if how == "missing" else source.tap()

    def loss(self, history: History) -> Tensor:
        return self.mix(self.layout.num_sublayers, history).sin().sum()

    def gradients(self) -> list[Tensor]:
        return [tensor.grad for tensor in (*self.weights, *self.scores) if tensor.grad is not None]


def one_process(layout: DepthLayout, micro_batches: int, dtype: torch.dtype) -> tuple[list[float], list[Tensor]]:
    toy, losses = Toy(layout, dtype), []
    for batch in range(micro_batches):
        history = toy.start(batch)
        for number in range(layout.num_sublayers):
            history = toy.sublayer(number, history)
        loss = toy.loss(history)
        loss.backward()
        losses.append(loss.item())
    return losses, toy.gradients()


class PoisonPool(BufferPool):
    """What is given back is spoilt at once."""

    def give(self, tensors: Iterable[Tensor]) -> None:
        mine = [tensor for tensor in tensors if self._lent.get(id(tensor)) is tensor]
        super().give(mine)
        for tensor in mine:
            tensor.fill_(torch.nan)


class Ranks:
    """All ranks of `plan`; a message is a copy in buffers of the receiver's pool, as on the wire.

    Odd micro-batches ask for what is complete after every sublayer, as eager sending does.
    """

    def __init__(self, plan: WirePlan, dtype: torch.dtype = torch.float64, limit: int = 99):
        self.plan, self.toy = plan, Toy(plan.layout, dtype)
        self.pools = [PoisonPool(SHAPE, dtype, torch.device("cpu"), limit) for _ in range(plan.pipeline)]
        self.caches = [HistoryCache(plan, rank, pool, f"rank {rank}") for rank, pool in enumerate(self.pools)]
        self.histories: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        self.gradients, self.departed = dict(self.histories), dict(self.histories)
        self.losses: dict[int, float] = {}
        self.seen: list[weakref.ref[Tensor]] = []

    def run(self, schedule: Schedule, forward_only: bool = False) -> None:
        for forward, batch, stage in moves(schedule, forward_only):
            (self.forward if forward else self.backward)(batch, stage)
        for cache in self.caches:
            cache.finish()

    def forward(self, batch: int, stage: int) -> None:
        cache, toy, last = self.caches[stage % self.plan.pipeline], self.toy, self.plan.num_stages - 1
        toy.batch = batch
        history = cache.arrive(batch, stage, self.histories.pop((batch, stage))) if stage else toy.start(batch)
        early: tuple[Tensor, ...] = ()
        for sublayer in readers(self.plan, stage)[: 2 * self.plan.layers_per_stage[stage]]:
            history = toy.sublayer(sublayer, history)
            if batch % 2 and stage < last:
                early += cache.complete(batch, stage, history)
        self.seen += [weakref.ref(source.value) for source in history.sources.values()]
        if stage == last:
            tapped = (toy.loss(history),)
            cache.end(batch, stage)
            self.losses[batch] = tapped[0].item()
        else:
            departure = cache.depart(batch, stage, history)
            tapped = departure.tapped
            self.histories[batch, stage + 1] = self._sent(stage + 1, (*early, *departure.travelling))
        if torch.is_grad_enabled():
            self.departed[batch, stage] = tapped

    def forwards(self, batch: int, stages: range) -> None:
        for stage in stages:
            self.forward(batch, stage)

    def backward(self, batch: int, stage: int) -> None:
        cache = self.caches[stage % self.plan.pipeline]
        if stage < self.plan.num_stages - 1:
            cache.wanted(batch, stage)
        torch.autograd.backward(self.departed.pop((batch, stage)), self.gradients.pop((batch, stage), None))
        if stage:
            owed = cache.returned(batch, stage)
            self.gradients[batch, stage - 1] = self._sent(stage - 1, owed)
            self.pools[stage % self.plan.pipeline].give(owed)

    def _sent(self, to_stage: int, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        pool = self.pools[to_stage % self.plan.pipeline]
        buffers = tuple(pool.take().copy_(tensor) for tensor in tensors)
        self.seen += [weakref.ref(buffer) for buffer in buffers]
        return buffers

    @property
    def alive(self) -> int:
        return sum(ref() is not None for ref in self.seen)


def agrees(plan: WirePlan, schedule: Schedule, dtype: torch.dtype) -> None:
    """Losses bit for bit, gradients too where the plan promises it; peaks as the schedule says."""
    losses, expected = one_process(plan.layout, schedule.micro_batches, dtype)
    ranks = Ranks(plan, dtype)
    ranks.run(schedule)
    assert [ranks.losses[batch] for batch in range(schedule.micro_batches)] == losses
    found, exact = (torch.cat([gradient.flatten() for gradient in each]) for each in (ranks.toy.gradients(), expected))
    bound = {torch.float64: 1e-12, torch.float32: 1e-6}[dtype] if plan.cache and not plan.exact_gradients else 0.0
    assert torch.equal(found, exact) or (bound and (found - exact).norm() <= bound * exact.norm())
    for rank, cache in enumerate(ranks.caches):
        assert [cache.take_peak_slices(), cache.take_peak_slices()] == [peak_and_rest(plan, schedule, rank)[0], 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@settings(max_examples=40)
@given(plan=plans(small=True), more=st.integers(0, 1))
def test_all_ranks_together_are_one_process(dtype: torch.dtype, plan: WirePlan, more: int) -> None:
    group = plan.pipeline + more
    for variant in variants(plan):
        agrees(variant, Schedule(plan.pipeline, plan.virtual, 2 * group, group), dtype)


def test_a_stage_of_no_layers_in_the_middle_does_not_go_with_a_shared_gradient() -> None:
    """It would hand on what only later stages of the maker's rank read: nothing brings their gradient home."""
    plan = WirePlan(DepthLayout(6, "block", 2), (1, 1, 0, 1), 2, 2)
    with pytest.raises(ValueError, match="no layers in the middle"):
        replace(plan, cache=True)
    for allowed in variants(plan):
        agrees(allowed, Schedule(2, 2, 4), torch.float64)


@pytest.mark.parametrize("mode", ["standard", "block"])
@pytest.mark.parametrize(("reader", "how"), [(2, "missing"), (2, "twice"), (8, "missing")])
def test_a_partial_that_gets_too_few_or_too_many_gradients(mode: str, reader: int, how: str) -> None:
    """Read by the first sublayer of stage 1, or by the head alone on the last stage."""
    layout = DepthLayout(8, mode, 3 if mode == "block" else None)  # type: ignore[arg-type]
    split = (1, 3) if reader == 2 else (4, 0)
    ranks = Ranks(WirePlan(layout, split, 2))
    ranks.toy.spoiled[1, reader, -1] = how
    with refused("gradients", "rank 1", "micro-batch 1", "partial", "stage 1"):
        ranks.run(Schedule(2, 1, 2))


PLAN = WirePlan(DepthLayout(8, "block", 2), (1, 1, 1, 1), pipeline=2, virtual=2)
CACHED, SCHEDULE = replace(PLAN, cache=True), Schedule(2, 2, 4)


@contextmanager
def refused(what: str, *names: str) -> Iterator[None]:
    with pytest.raises(HistoryError, match=what) as caught:
        yield
    assert all(re.search(rf"{name}\b", str(caught.value)) for name in names), str(caught.value)


@pytest.mark.parametrize(("how", "what"), [("missing", "is missing gradients"), ("twice", "got gradients twice")])
@pytest.mark.parametrize("plan", variants(PLAN), ids=["whole prefix", "cached", "exact"])
def test_one_deposit_too_few_or_too_many(plan: WirePlan, how: str, what: str) -> None:
    """On stages that made the source, received it, know it. What the last stage makes has no account."""
    reads = {(s, n): r for s in range(4) for r in readers(plan, s) for n in plan.layout.reads(r).sources if n < 4}
    for (stage, number), reader in reads.items():
        ranks = Ranks(plan)
        ranks.toy.spoiled[1, reader, number] = how
        with refused(what, f"rank {stage % 2}", "micro-batch 1", f"source {number}", f"stage {stage}"):
            ranks.run(SCHEDULE)


@pytest.mark.parametrize("batch_by_batch", [True, False])
def test_two_micro_batches_mixed_up(batch_by_batch: bool) -> None:
    """Stage by stage, as megatron-core goes, every count of deposits is right all the same."""
    ranks = Ranks(CACHED)
    ranks.forwards(0, range(3))
    ranks.forwards(1, range(3))
    held = ranks.caches[1]._held
    first, second = held[0, 0], held[1, 0]
    held[0, 0], held[1, 0] = replace(first, buffer=second.buffer), replace(second, buffer=first.buffer)
    ranks.forward(0, 3)
    ranks.forward(1, 3)
    order = [(batch, stage) for stage in (3, 2, 1, 0) for batch in (0, 1)]
    with refused("lost the gradients of stage 3", "rank 1", "micro-batch 0", "source 0"):
        for batch, stage in sorted(order, key=lambda visit: visit[0]) if batch_by_batch else order:
            ranks.backward(batch, stage)


def test_a_release_left_out() -> None:
    ranks = Ranks(CACHED)
    ranks.caches[1]._release = lambda micro_batch, number: None  # type: ignore[method-assign]
    with refused("still held after its last reader", "rank 1", "micro-batch 0", "source 0", "stage 3"):
        ranks.run(SCHEDULE)


def test_a_backward_never_run() -> None:
    ranks = Ranks(CACHED)
    ranks.forwards(0, range(4))
    ranks.backward(0, 3)
    with refused("never ran backward", "rank 1", "micro-batch 0", "stage 1"):
        ranks.caches[1].finish()


def test_a_source_that_is_no_longer_held() -> None:
    ranks = Ranks(CACHED)
    ranks.forwards(0, range(3))
    again = ranks.histories[0, 3]
    ranks.forward(0, 3)
    ranks.histories[0, 3] = again
    with refused("is not held for", "rank 1", "micro-batch 0", "source 0", "stage 3"):
        ranks.forward(0, 3)


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ("end end", "`end` came after `end`"),
        ("returned", "`returned` came after `arrive`"),
        ("end returned", "`returned` came after `end`"),
        ("wanted", "`wanted` came after `arrive`"),
        ("left", "`left` came after `arrive`"),
        ("end left left", "`left` came after `left`"),
        ("end left end", "`end` came after `left`"),
        ("end left wanted wanted", "`wanted` came after `wanted`"),
        ("end wanted end", "`end` came after `wanted`"),
        ("arrive", "`arrive` came after `arrive`"),
    ],
)
def test_a_visit_only_moves_on(calls: str, said: str) -> None:
    cache = Ranks(PLAN).caches[1]
    buffers = [torch.zeros(SHAPE) for _ in range(PLAN.hop_into(1).slices)]
    cache.arrive(0, 1, buffers)
    *before, last = calls.split()
    for call in before:
        getattr(cache, call)(0, 1)
    with refused(f"rank 1: micro-batch 0 on stage 1: {said}$"):
        getattr(cache, last)(0, 1, *([buffers] if last == "arrive" else []))


@pytest.mark.parametrize("calls", ["end left wanted", "end wanted left", "end wanted"])
def test_a_message_that_left_late_is_no_news(calls: str) -> None:
    cache = Ranks(PLAN).caches[1]
    cache.arrive(0, 1, [torch.zeros(SHAPE) for _ in range(PLAN.hop_into(1).slices)])
    for call in calls.split():
        getattr(cache, call)(0, 1)
    for call in ("end", "wanted"):
        with refused(f"`{call}` came after `wanted`$"):
            getattr(cache, call)(0, 1)


@pytest.mark.parametrize("last", [False, True], ids=["a stage that sends", "the last stage"])
def test_what_a_later_stage_computes_with_is_not_parked_by_news_of_an_earlier_one(last: bool) -> None:
    """News that stage 1 has sent may come while stage 3, or 2 of 5 stages on 2 ranks, reads the same memory."""
    plan = CACHED if last else replace(CACHED, layout=DepthLayout(12, "block", 2), layers_per_stage=(1,) * 6, virtual=3)
    pool = PoisonPool(SHAPE, torch.float64, torch.device("cpu"), 99)
    cache = HistoryCache(plan, 1, pool, "rank 1", HostOffload())
    first = [pool.take().fill_(number) for number in range(plan.hop_into(1).slices)]
    history = cache.arrive(0, 1, first)
    made = {number: Source.leaf(pool.take().fill_(9)) for number in plan.made_on(1)}
    cache.depart(0, 1, replace(history, sources={**history.sources, **made}))
    later = cache.arrive(0, 3, [pool.take().fill_(5) for _ in range(plan.hop_into(3).slices)])
    cache.left(0, 1)
    assert all(source.value.untyped_storage().nbytes() for source in later.sources.values())
    assert later.sources[0].value.eq(0).all()


@pytest.mark.parametrize(("first_backward", "stays"), [((0, 1), True), ((1, 1), False)])
def test_late_news_takes_nothing_away_that_the_next_backward_reads(
    first_backward: tuple[int, int], stays: bool
) -> None:
    pool = PoisonPool(SHAPE, torch.float64, torch.device("cpu"), 99)
    cache = HistoryCache(PLAN, 1, pool, "rank 1", HostOffload())
    cache.begin([first_backward, (0, 1), (0, 3)])
    history = cache.arrive(0, 1, [pool.take().fill_(number) for number in range(PLAN.hop_into(1).slices)])
    made = {number: Source.leaf(pool.take().fill_(9)) for number in PLAN.made_on(1)}
    cache.depart(0, 1, replace(history, sources={**history.sources, **made}))
    cache.left(0, 1)
    sizes = [source.value.untyped_storage().nbytes() for source in history.sources.values()]
    assert all(sizes) if stays else not any(sizes)


@pytest.mark.parametrize("call", ["end", "wanted", "returned"])
def test_a_visit_that_never_began(call: str) -> None:
    with refused(f"rank 1: micro-batch 5 on stage 1: `{call}` came after nothing$"):
        getattr(Ranks(PLAN).caches[1], call)(5, 1)


@pytest.mark.parametrize("plan", variants(PLAN), ids=["whole prefix", "cached", "exact"])
def test_nothing_is_alive_afterwards(plan: WirePlan) -> None:
    ranks = Ranks(plan, limit=0)
    ranks.run(SCHEDULE)
    assert ranks.seen and ranks.alive == 0
    evaluation = Ranks(plan)
    with torch.no_grad():
        evaluation.run(SCHEDULE, forward_only=True)
    assert evaluation.losses == ranks.losses
    assert evaluation.seen and evaluation.alive == 0


def test_nothing_is_alive_after_an_exception() -> None:
    ranks = Ranks(CACHED, limit=0)
    ranks.toy.loss = lambda history: 1 / 0  # type: ignore[assignment, return-value]
    with suppress(ZeroDivisionError):
        ranks.run(SCHEDULE)
    for messages in (ranks.histories, ranks.gradients, ranks.departed):
        messages.clear()
    assert ranks.alive > 0, "in the caches"
    for cache in ranks.caches:
        cache.clear()
        cache.finish()
    assert ranks.alive == 0


def test_received_buffers_wait_in_the_pool_once_their_stage_has_run_backward() -> None:
    ranks = Ranks(CACHED)
    ranks.forwards(0, range(3))
    (received,) = ranks.histories[0, 3]
    ranks.forward(0, 3)
    assert len(ranks.pools[1]) == 0
    ranks.backward(0, 3)
    assert ranks.pools[1].take() is received


def test_a_pool_takes_back_its_own_and_no_more_than_its_limit() -> None:
    pool = BufferPool(SHAPE, torch.float32, torch.device("cpu"), limit=2)
    one, two, three = pool.take(), pool.take(), pool.take()
    pool.give([torch.empty(SHAPE), one.detach(), one[:1]])
    assert len(pool) == 0, "a foreign tensor, an alias, a part"
    pool.give([one, one])
    assert len(pool) == 1, "once"
    pool.give([one, two, three])
    assert len(pool) == 2 and {id(pool.take()), id(pool.take())} == {id(one), id(two)}
