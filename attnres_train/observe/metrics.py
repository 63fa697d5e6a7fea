"""What a logged step records, under one scheme of tags: group/name, the unit in the name."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist

from attnres_train.parallel.grid import Grid
from attnres_train.progress import StepReport, TrainState

GIB = 2**30


@dataclass(frozen=True)
class Timing:
    """Seconds and tokens since the last logged step."""

    seconds: float
    data_seconds: float
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
    timing: Timing,
    *,
    flops_per_token: float,
    devices: int,
    peaks: Peaks,
) -> dict[str, float]:
    """Tags and values of one training step; rates are over the steps since the last logged one."""
    tokens_per_second = timing.tokens / timing.seconds
    return {
        "loss/train": report.loss,
        "optim/lr": report.learning_rate,
        "optim/grad_norm": report.grad_norm,
        "optim/skipped_steps": state.skipped_steps,
        "throughput/tokens_per_second": tokens_per_second,
        "throughput/tokens_per_second_per_device": tokens_per_second / devices,
        "throughput/model_tflops_per_device": tokens_per_second * flops_per_token / devices / 1e12,
        "time/step_seconds": timing.seconds / timing.steps,
        "time/data_seconds": timing.data_seconds / timing.steps,
        "memory/peak_gib": peaks.memory_gib,
        "pipeline/forward_bytes": report.forward_bytes,
        "pipeline/backward_bytes": report.backward_bytes,
        "pipeline/kept_bytes": peaks.kept_bytes,
    }


def peaks_of_ranks(grid: Grid, kept_bytes: int) -> Peaks:
    """Peaks over the ranks, of which each gives its own. A collective."""
    if grid.device.type == "cuda":
        mine = torch.cuda.max_memory_allocated(grid.device) / GIB
    else:
        unit_bytes = 1 if sys.platform == "darwin" else 1024
        mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes / GIB
    peaks = torch.tensor([mine, kept_bytes], dtype=torch.float64)
    dist.all_reduce(peaks, op=dist.ReduceOp.MAX, group=grid.control)
    return Peaks(peaks[0].item(), int(peaks[1].item()))
