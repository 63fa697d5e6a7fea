"""The learning rate as a function of the step."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres_train.optim.config import OptimizerConfig, ScheduleConfig
from attnres_train.optim.schedule import learning_rate

PEAK = 6e-4


def rates(schedule: ScheduleConfig, steps: int, peak: float = PEAK) -> list[float]:
    """Of steps 1 to `steps`."""
    optimizer = OptimizerConfig(learning_rate=peak)
    return [learning_rate(optimizer, schedule, steps, step) for step in range(1, steps + 1)]


@st.composite
def schedules(draw: st.DrawFn) -> tuple[ScheduleConfig, int]:
    steps = draw(st.integers(1, 300))
    warmup = draw(st.integers(0, steps))
    kind = draw(st.sampled_from(["cosine", "wsd", "constant"]))
    decay = draw(st.integers(1, max(1, steps - warmup))) if kind == "wsd" else None
    floor = draw(st.floats(0, PEAK))
    return ScheduleConfig(kind=kind, warmup_steps=warmup, decay_steps=decay, min_learning_rate=floor), steps


@settings(deadline=None)
@given(schedules())
def test_rates_rise_to_the_peak_and_then_only_fall_never_below_the_minimum(
    case: tuple[ScheduleConfig, int],
) -> None:
    schedule, steps = case
    values = rates(schedule, steps)
    warmup = schedule.warmup_steps
    assert values[:warmup] == sorted(values[:warmup])
    assert values[warmup:] == sorted(values[warmup:], reverse=True)
    assert all(0 < value <= PEAK * (1 + 1e-12) for value in values[:warmup])
    assert all(value >= schedule.min_learning_rate - 1e-12 * PEAK for value in values[warmup:])


def test_warm_up_is_linear_and_reaches_the_peak_at_its_last_step() -> None:
    values = rates(ScheduleConfig(kind="constant", warmup_steps=4), 6)
    assert values == pytest.approx([PEAK / 4, PEAK / 2, PEAK * 3 / 4, PEAK, PEAK, PEAK])


def test_cosine_is_at_the_mean_half_way_and_at_the_minimum_at_the_end() -> None:
    values = rates(ScheduleConfig(kind="cosine", warmup_steps=10, min_learning_rate=PEAK / 10), 30)
    assert values[9] == pytest.approx(PEAK)
    assert values[19] == pytest.approx((PEAK + PEAK / 10) / 2)
    assert values[29] == pytest.approx(PEAK / 10)


def test_cosine_without_warm_up_starts_just_below_the_peak() -> None:
    schedule = ScheduleConfig(kind="cosine", min_learning_rate=1e-300)
    assert rates(schedule, 8)[0] == pytest.approx(PEAK * 0.5 * (1 + math.cos(math.pi / 8)))


def test_no_step_is_wasted_at_a_rate_of_zero() -> None:
    """A decay to 0 gets there with the step after the last; a step at 0 would change nothing."""
    assert rates(ScheduleConfig(kind="cosine", warmup_steps=2), 5) == pytest.approx(
        [PEAK / 2, PEAK] + [PEAK * 0.5 * (1 + math.cos(math.pi * part / 4)) for part in (1, 2, 3)]
    )
    assert rates(ScheduleConfig(kind="cosine"), 1) == pytest.approx([PEAK / 2])
    assert rates(ScheduleConfig(kind="wsd", decay_steps=1), 2) == pytest.approx([PEAK, PEAK / 2])


@pytest.mark.parametrize("floor", [0.0, PEAK / 10])
def test_a_stated_cosine_end_counts_from_the_first_step_warm_up_included(floor: float) -> None:
    """Every step by hand: 6 of warm-up, the minimum at step 16, and there it stays."""
    schedule = ScheduleConfig(kind="cosine", warmup_steps=6, decay_steps=16, min_learning_rate=floor)
    end = 16 if floor else 17
    falling = [floor + (PEAK - floor) / 2 * (1 + math.cos(math.pi * part / (end - 6))) for part in range(1, 11)]
    expected = [PEAK * step / 6 for step in range(1, 7)] + falling + [floor] * 4
    assert rates(schedule, 20) == pytest.approx(expected, rel=1e-12, abs=1e-18)


def test_a_stated_cosine_end_does_not_move_when_the_run_grows() -> None:
    schedule = ScheduleConfig(kind="cosine", decay_steps=20)
    assert rates(schedule, 40)[:20] == rates(schedule, 20)
    assert set(rates(schedule, 40)[20:]) == {0.0}


def test_an_unstated_cosine_end_is_stretched_when_the_run_grows() -> None:
    schedule = ScheduleConfig(kind="cosine", min_learning_rate=1e-300)
    assert rates(schedule, 40)[19] == pytest.approx(PEAK / 2)


def test_wsd_stays_and_falls_linearly_over_its_last_steps() -> None:
    values = rates(ScheduleConfig(kind="wsd", warmup_steps=2, decay_steps=4), 10)
    assert values[2:6] == [PEAK] * 4
    assert values[6:] == pytest.approx([PEAK * 4 / 5, PEAK * 3 / 5, PEAK * 2 / 5, PEAK / 5])


def test_constant_stays_at_6e_4_for_ten_steps() -> None:
    assert rates(ScheduleConfig(kind="constant"), 10) == [6e-4] * 10


def test_a_new_schedule_holds_from_the_first_step_after_a_resume_and_mixes_nothing() -> None:
    """Constant 6e-4 for 10 steps, then cosine from 3e-4 to 3e-5: step 11 is the new schedule's alone."""
    schedule = ScheduleConfig(kind="cosine", min_learning_rate=3e-5)
    new = rates(schedule, 20, peak=3e-4)
    assert new[10] == pytest.approx(3e-5 + 2.7e-4 * 0.5 * (1 + math.cos(math.pi * 11 / 20)))
    assert max(new[10:]) < 3e-4
