"""The schedules as plain values against megatron-core's own tables and refusals."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import schedules as megatron

from attnres_train.parallel.schedule import Schedule, Turn, Visit


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


@given(valid())
def test_no_rank_waits_for_ever(schedule: Schedule) -> None:
    """Every rank takes its turns in order, each as soon as the neighbouring stage has done its part."""
    last = schedule.pipeline * schedule.virtual - 1
    left = {rank: list(schedule.turns(rank)) for rank in range(schedule.pipeline)}
    done: set[tuple[bool, int, int]] = set()

    def ready(rank: int) -> tuple[bool, int, int] | None:
        if not left[rank]:
            return None
        forward, (micro_batch, chunk) = left[rank][0]
        stage = chunk * schedule.pipeline + rank
        at_end = stage == (0 if forward else last)
        before = (forward, micro_batch, stage - 1 if forward else stage + 1)
        return (forward, micro_batch, stage) if at_end or before in done else None

    while any(left.values()):
        moves = {rank: move for rank in left if (move := ready(rank))}
        assert moves, f"all ranks wait: {[turns[:1] for turns in left.values()]}"
        for rank, move in moves.items():
            done.add(move)
            left[rank].pop(0)


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
