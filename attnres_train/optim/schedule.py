"""The learning rate as a pure function of the schedule and the step; nothing to save, nothing to restore."""

from __future__ import annotations

import math

from attnres_train.optim.config import OptimizerConfig, ScheduleConfig


def learning_rate(optimizer: OptimizerConfig, schedule: ScheduleConfig, total_steps: int, step: int) -> float:
    """Learning rate of the update that makes `step` steps complete (`step` counts from 1).

    Warm-up is linear and reaches the peak at step `warmup_steps`. `cosine` then falls from the peak to
    `min_learning_rate` along half a cosine, `wsd` stays and falls linearly over the last `decay_steps` steps
    before `total_steps`, `constant` stays. After its end a decay stays at the minimum.

    The last step of a decay has the minimum; where that is 0 a step at it would be wasted, so 0 is reached only by
    the step after it. Steps count, not samples: with another batch size the same step has the same rate.
    """
    peak, floor, warmup = optimizer.learning_rate, schedule.min_learning_rate, schedule.warmup_steps
    beyond = 0 if floor else 1
    if step <= warmup:
        return peak * (step / warmup)  # exactly the peak at the end
    if schedule.kind == "constant":
        return peak
    if schedule.kind == "cosine":
        end = schedule.decay_steps or total_steps
        return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * _fraction(step, warmup, end + beyond)))
    start = total_steps - (schedule.decay_steps or 0)
    return peak + (floor - peak) * _fraction(step, start, total_steps + beyond)


def _fraction(step: int, start: int, end: int) -> float:
    """How far `step` is from `start` to `end`, within [0, 1]."""
    if end <= start:
        return float(step > start)
    return min(max((step - start) / (end - start), 0.0), 1.0)
