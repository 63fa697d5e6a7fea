"""The schedules as plain values against megatron-core's own tables and refusals; what stands while one runs."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import schedules as megatron

from attnres_train.parallel.schedule import Schedule, Turn, Visit
from attnres_train.parallel.wire import WirePlan
from tests.unit.test_wire import made, plans, variants


@st.composite
def grids(draw: st.DrawFn) -> Schedule:
    """What megatron-core runs, and what it refuses; several chunks only on several ranks."""
    pipeline = draw(st.integers(1, 6))
    virtual = 1 if pipeline == 1 else draw(st.integers(1, 4))
    group = draw(st.none() | st.integers(max(1, pipeline - 1), pipeline + 4))
    return Schedule(pipeline, virtual, draw(st.integers(1, 20)), group)


@st.composite
def valid(draw: st.DrawFn) -> Schedule:
    schedule = draw(grids())
    assume(schedule.is_valid)
    return schedule


def communicator(schedule: Schedule, rank: int) -> SimpleNamespace:
    """What megatron-core asks of its communicator."""
    group = SimpleNamespace(size=lambda: schedule.pipeline, rank=lambda: rank)
    virtual = schedule.virtual if schedule.virtual > 1 else None
    config = SimpleNamespace()
    return SimpleNamespace(pp_group=group, virtual_pipeline_model_parallel_size=virtual, config=config)


def warmup_by_megatron(schedule: Schedule, rank: int, forward_only: bool = False) -> tuple[int, int]:
    """Forwards before 1F1B, and those that follow."""
    size, where = schedule.group_size, communicator(schedule, rank)
    counts = megatron.get_pp_rank_microbatches(
        schedule.micro_batches, schedule.virtual, size, forward_only, p2p_communicator=where
    )
    return counts[2], counts[3]


@given(grids())
def test_visits_are_the_schedule_table(schedule: Schedule) -> None:
    table = megatron.get_schedule_table(schedule.micro_batches, schedule.virtual, schedule.group_size)
    last = schedule.virtual - 1
    assert schedule.forwards() == table
    assert schedule.backwards() == [(micro_batch, last - chunk) for micro_batch, chunk in table]


@given(valid())
def test_each_rank_is_sent_what_its_own_stages_read_and_gave_once(schedule: Schedule) -> None:
    """Whatever the order: a history into every stage but the first, a gradient back into every one but the last."""
    for rank in range(schedule.pipeline):
        own = [
            (m, c * schedule.pipeline + rank) for m in range(schedule.micro_batches) for c in range(schedule.virtual)
        ]
        last = schedule.pipeline * schedule.virtual - 1
        assert sorted(schedule.arrivals(rank)) == [(m, stage) for m, stage in own if stage > 0]
        assert sorted(schedule.returns(rank)) == [(m, stage) for m, stage in own if stage < last]


@given(grids())
def test_warmup_is_that_of_every_rank(schedule: Schedule) -> None:
    total = schedule.micro_batches * schedule.virtual
    for rank in range(schedule.pipeline):
        assert warmup_by_megatron(schedule, rank) == (schedule.warmup(rank), total - schedule.warmup(rank))


@given(valid())
def test_turns_are_warmup_then_one_forward_one_backward_then_the_rest(schedule: Schedule) -> None:
    for rank in range(schedule.pipeline):
        turns = list(schedule.turns(rank))
        assert [turn.visit for turn in turns if turn.forward] == schedule.forwards()
        assert [turn.visit for turn in turns if not turn.forward] == schedule.backwards()
        ahead, steady = warmup_by_megatron(schedule, rank)
        assert [turn.forward for turn in turns] == [True] * ahead + [True, False] * steady + [False] * ahead


@given(valid())
def test_every_visit_is_once_forward_and_later_once_backward(schedule: Schedule) -> None:
    visits = {Visit(m, c) for m in range(schedule.micro_batches) for c in range(schedule.virtual)}
    for rank in range(schedule.pipeline):
        turns = list(schedule.turns(rank))
        assert len(turns) == 2 * len(visits)
        for visit in visits:
            assert turns.index(Turn(True, visit)) < turns.index(Turn(False, visit))


@given(grids())
def test_evaluation_is_the_forwards_alone(schedule: Schedule) -> None:
    table = megatron.get_schedule_table(schedule.micro_batches, schedule.virtual, schedule.group_size)
    for rank in range(schedule.pipeline):
        turns = list(schedule.turns(rank, forward_only=True))
        assert turns == [Turn(True, Visit(*visit)) for visit in table]
        assert warmup_by_megatron(schedule, rank, forward_only=True) == (len(turns), 0)


def moves(schedule: Schedule, forward_only: bool = False) -> Iterator[tuple[bool, int, int]]:
    """Forwards and backwards of micro-batches on stages, in an order that the ranks can take.

    Every rank takes its turns in order, each as soon as the neighbouring stage has done its part.
    """
    last = schedule.pipeline * schedule.virtual - 1
    left = {rank: list(schedule.turns(rank, forward_only)) for rank in range(schedule.pipeline)}
    done: set[tuple[bool, int, int]] = set()

    def ready(rank: int) -> tuple[bool, int, int] | None:
        if not left[rank]:
            return None
        forward, (batch, chunk) = left[rank][0]
        stage = chunk * schedule.pipeline + rank
        first = stage == (0 if forward else last)
        return (forward, batch, stage) if first or (forward, batch, stage + (-1 if forward else 1)) in done else None

    while any(left.values()):
        possible = {rank: move for rank in left if (move := ready(rank))}
        assert possible, f"all ranks wait: {[turns[:1] for turns in left.values()]}"
        for rank, move in possible.items():
            left[rank].pop(0)
            done.add(move)
            yield move


@given(valid(), st.booleans())
def test_no_rank_waits_for_ever(schedule: Schedule, forward_only: bool) -> None:
    visits = schedule.pipeline * schedule.virtual * schedule.micro_batches
    assert len(set(moves(schedule, forward_only))) == visits * (1 if forward_only else 2)


def peak_and_rest(plan: WirePlan, schedule: Schedule, rank: int) -> tuple[int, int]:
    """The most slices that stand on `rank` at once, and those left over."""
    standing: dict[tuple[int, int], int] = {}
    held: dict[tuple[int, int], int] = {}
    peak = 0
    for forward, (batch, chunk) in schedule.turns(rank):
        stage = chunk * plan.pipeline + rank
        opened = [entry for entry in plan.kept_on(rank) if entry.opened == stage]
        if forward:
            assert all((batch, number) in held for number in plan.known_on(stage)), "used after its last reader"
            standing[batch, stage] = plan.received_slices(stage) + len(made(plan, stage))
            held |= {(batch, entry.number): entry.last_reader for entry in opened}
            held = {key: last for key, last in held.items() if (key[0], last) != (batch, stage)}
            peak = max(peak, sum(standing.values()))
        else:
            assert all((batch, later) not in standing for entry in opened for later in entry.readers)
            del standing[batch, stage]
    return peak, len(standing) + len(held)


@settings(max_examples=100)
@given(plans(), st.data())
def test_nothing_stands_when_a_schedule_has_run(plan: WirePlan, data: st.DataObject) -> None:
    rounds = data.draw(st.integers(1, 3))
    schedule = Schedule(plan.pipeline, plan.virtual, rounds * plan.pipeline)
    rank = data.draw(st.integers(0, plan.pipeline - 1))
    peaks = []
    for variant in variants(plan):
        peak, rest = peak_and_rest(variant, schedule, rank)
        assert rest == 0
        peaks.append(peak)
    assert peaks[1] == peaks[-1] <= peaks[0], "cached, exact, whole prefix"
    assert [plan.received_slices(hop.to_stage) for hop in plan.hops()] == [hop.slices for hop in plan.hops()]


class Accepted(Exception):
    """megatron-core went past its checks."""


def accepted_by_megatron(schedule: Schedule) -> bool:
    """Whether the interleaved schedule itself starts; everything that it touches before its checks is a stub."""

    def past_the_checks(*_: object, **__: object) -> None:
        raise Accepted

    model = torch.nn.Module()
    model.model_type = ModelType.encoder_or_decoder  # type: ignore[assignment]
    names = ("finalize_model_grads_func", "timers", "no_sync_func", "grad_sync_func", "param_sync_func")
    model.config = SimpleNamespace(  # type: ignore[assignment]
        **dict.fromkeys(names),
        overlap_p2p_comm=True,
        batch_p2p_comm=False,
        hidden_size=1,
        sequence_parallel=False,
        overlap_moe_expert_parallel_comm=False,
        microbatch_group_size_per_vp_stage=schedule.group_size,
    )
    one = SimpleNamespace(size=lambda: 1)
    groups = SimpleNamespace(**dict.fromkeys(("tp", "cp", "embd", "pos_embd", "pp", "dp_cp"), one))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(megatron, "torch", SimpleNamespace(nn=torch.nn, int=torch.int, zeros=lambda *_, **__: None))
        patch.setattr(megatron, "get_pp_rank_microbatches", past_the_checks)
        try:
            megatron.forward_backward_pipelining_with_interleaving(
                forward_step_func=None,
                data_iterator=[None] * schedule.virtual,
                model=[model] * schedule.virtual,
                num_microbatches=schedule.micro_batches,
                seq_length=1,
                micro_batch_size=1,
                p2p_communicator=communicator(schedule, 0),
                pg_collection=groups,
            )
        except Accepted:
            return True
        except (ValueError, RuntimeError):
            return False
    raise AssertionError("the schedule ended before it began")


@pytest.mark.parametrize("pipeline", [2, 3, 4])
def test_valid_is_what_the_interleaved_schedule_accepts(pipeline: int) -> None:
    sizes = [Schedule(pipeline, 2, m, group) for m in range(1, 14) for group in range(pipeline - 1, pipeline + 4)]
    sizes += [Schedule(pipeline, 2, m) for m in range(1, 14)]
    assert {accepted_by_megatron(schedule) for schedule in sizes} == {True, False}
    assert [s for s in sizes if s.is_valid != accepted_by_megatron(s)] == []


def test_plain_1f1b_takes_any_number_of_micro_batches() -> None:
    assert all(Schedule(4, 1, micro_batches).is_valid for micro_batches in range(1, 10))
