"""What a logged step records, under one scheme of tags: group/name, the unit in the name."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

from attnres_train.observe.record_lines import LOSS_TOKENS
from attnres_train.observe.tags import PHASES
from attnres_train.parallel.grid import Grid
from attnres_train.progress import LossSum, StepReport, TrainState
from attnres_train.words import GIB

VALIDATION_TAG = "loss/valid"


class MfuTerms(NamedTuple):
    """What model FLOPs utilisation is reckoned by, beside tokens a second. Without the dense peak of one device, which
    not every data sheet states, there is none (`throughput/mfu`)."""

    flops_per_token: float
    peak_flops_per_second: float | None


@dataclass(frozen=True)
class LogInterval:
    """Seconds and tokens since the last logged step; `phases` is a mean over the ranks."""

    seconds: float
    phases: Mapping[str, float]
    steps: int
    tokens: int


@dataclass(frozen=True)
class Peaks:
    """Of the fullest rank each: memory of the device where there is one, else of the process; depth history kept."""

    memory_gib: float
    kept_bytes: int


def step_metrics(
    state: TrainState,
    report: StepReport,
    interval: LogInterval,
    mfu: MfuTerms,
    *,
    devices: int,
    peaks: Peaks,
) -> dict[str, float]:
    """Tags and values of one training step; rates are over the steps since the last logged one."""
    tokens_per_second = interval.tokens / interval.seconds
    flops_per_second = tokens_per_second * mfu.flops_per_token / devices
    peak = mfu.peak_flops_per_second
    utilisation = {} if peak is None else {"throughput/mfu": flops_per_second / peak}
    return {
        **{
            f"loss/{name}": of_name.mean for name, of_name in report.losses.items() if of_name.tokens or name == "train"
        },
        LOSS_TOKENS: report.losses["train"].tokens,
        "optim/lr": report.learning_rate,
        "optim/grad_norm": report.grad_norm,
        "optim/skipped_steps": state.skipped_steps,
        "throughput/tokens_per_second": tokens_per_second,
        "throughput/tokens_per_second_per_device": tokens_per_second / devices,
        "throughput/model_tflops_per_device": flops_per_second / 1e12,
        **utilisation,
        "time/step_seconds": interval.seconds / interval.steps,
        **{f"time/{phase}_seconds": interval.phases[phase] / interval.steps for phase in PHASES},
        "memory/peak_gib": peaks.memory_gib,
        "pipeline/forward_bytes": report.forward_bytes,
        "pipeline/backward_bytes": report.backward_bytes,
        "pipeline/kept_bytes": peaks.kept_bytes,
    }


def validation_metrics(losses: Mapping[str, LossSum], tokens_per_byte: Mapping[str, float | None]) -> dict[str, float]:
    """Tags and values of an evaluation of the sets in `losses`, one without a name if it is the only one.

    In nats a token, and in bits a byte of text where the corpora know their bytes; of all sets together, and of each
    that has a name.
    """
    values: dict[str, float] = {}
    whole, whole_bytes = LossSum(), 0.0
    for name, of_set in losses.items():
        per_byte = tokens_per_byte[name]
        text_bytes = math.nan if per_byte is None else of_set.tokens / per_byte
        whole, whole_bytes = whole.plus(of_set), whole_bytes + text_bytes
        if name:
            values |= _both_units(f"/{name}", of_set, text_bytes)
    return _both_units("", whole, whole_bytes) | values


def _both_units(ending: str, losses: LossSum, text_bytes: float) -> dict[str, float]:
    values = {f"{VALIDATION_TAG}{ending}": losses.mean}
    if text_bytes > 0:
        values[f"{VALIDATION_TAG}_bits_per_byte{ending}"] = losses.loss / math.log(2) / text_bytes
    return values


def over_ranks(grid: Grid, kept_bytes: int, phases: Mapping[str, float]) -> tuple[Peaks, dict[str, float]]:
    """Peaks over the ranks and means of their seconds by phase, of which each gives its own. A collective."""
    if grid.device.type == "cuda":
        mine = torch.cuda.max_memory_allocated(grid.device) / GIB
    else:
        unit_bytes = 1 if sys.platform == "darwin" else 1024
        mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes / GIB
    everybody = torch.zeros(grid.world_size, 2 + len(PHASES), dtype=torch.float64)
    own = [mine, kept_bytes, *(phases.get(phase, 0.0) for phase in PHASES)]
    everybody[grid.rank] = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(everybody, group=grid.control)
    memory_gib, kept = everybody[:, :2].amax(0).tolist()
    return Peaks(memory_gib, int(kept)), dict(zip(PHASES, everybody[:, 2:].mean(0).tolist(), strict=True))
