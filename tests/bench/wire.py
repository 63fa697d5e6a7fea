"""Pipeline steps on a slow link: does time fall as the bytes do? Every case of the wire over `standard`.

    python -m tests.bench.wire                                     at 100 Mbit/s, at 1 Gbit/s, and over loopback
    python -m tests.bench.wire --rates 100mbit --ranks 4 --steps 3
    python -m tests.bench.wire --overhead                          two ranks without virtual stages, over loopback

All cases are built once in the same rank processes and take turns. A step's time is the slowest rank's, from a
barrier to its own end; `ratio` and `over_whole` (beside the plan's `bytes_over_whole`) are of the least times, `median`
of ratios within rounds. Bytes are summed over ranks and measured steps: `bytes_plan` by the wire plan, forward and
backward; `bytes_sent` by the communicator; `bytes_measured` at the ranks' interfaces, with headers, acknowledgements
and the small all-reduces. Rates other than `loopback` need root and `tc` (namespaces.py) and are skipped without.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

from tests.bench.namespaces import Network, clean_up_on_signals, loopback, run_on, sent_bytes, shaped, why_not_shaped
from tests.bench.paired import show

VOCABULARY = 512
TIMEOUT_SECONDS = 300
CASES: dict[str, dict[str, Any]] = {
    "standard": {},
    "whole prefix": {"history_cache": "off"},
    "whole prefix, not eager": {"history_cache": "off", "eager": False},
    "cached": {"history_cache": "on"},
    "cached, not eager": {"history_cache": "on", "eager": False},
    "cached, exact gradients": {"history_cache": "on", "exact_gradients": True},
}
WIRE = {
    "rates": "100mbit,1gbit,loopback",
    "cases": tuple(CASES),
    "virtual": 4,
    "layers": 16,
    "width": 64,
    "sequence": 128,
    "batch": 4,
    "micro_batches": 8,
    "steps": 4,
}
OVERHEAD = {
    "rates": "loopback",
    "cases": ("standard", "whole prefix"),
    "virtual": 1,
    "layers": 8,
    "width": 512,
    "sequence": 512,
    "batch": 1,
    "micro_batches": 8,
    "steps": 5,
}


class Sample(NamedTuple):
    """One step of one case: on one rank, or on all."""

    seconds: float
    cpu_seconds: float
    sent: int
    """Bytes of histories and gradients, by the communicator."""
    measured: int
    """Bytes at the interface."""


@dataclass(frozen=True)
class Case:
    """A case as it stands on one rank: its step, which tells the bytes it sent, and the plan's bytes a step."""

    step: Callable[[], int]
    plan_bytes: int


def main() -> None:
    options = _options()
    if options.rank is not None:
        _rank(options)
        return
    clean_up_on_signals()
    rows: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    for rate in options.rates.split(","):
        reason = None if rate == "loopback" else why_not_shaped()
        if reason is None:
            rows += _measure(options, rate)
        else:
            skipped.append({"case": "skipped", "rate": rate, "reason": reason})
    show(rows + skipped if options.json else rows, options.json, _about(options))
    if not options.json:
        for row in skipped:
            print(f"{row['rate']}: skipped, {row['reason']}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--overhead", action="store_true", help="other defaults: the second measurement")
    parser.add_argument("--rates", help="of `tc`, with commas between them, or `loopback`")
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=8)
    for name in ("virtual", "layers", "width", "sequence", "batch", "micro_batches", "steps"):
        parser.add_argument("--" + name.replace("_", "-"), type=int)
    for name in ("--rank", "--rendezvous", "--interface"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name, value in (OVERHEAD if options.overhead else WIRE).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def _about(options: argparse.Namespace) -> str:
    return (
        f"pipeline step over `standard`: {options.ranks} ranks, {options.virtual} stages each, {options.layers} layers "
        f"in {options.blocks} blocks, width {options.width}, sequence {options.sequence}, {options.micro_batches} "
        f"micro-batches of {options.batch}, fp32, one thread a rank; {options.steps} rounds in which cases take turns"
    )


def _measure(options: argparse.Namespace, rate: str) -> list[dict[str, Any]]:
    """The rows of one rate, from ranks of their own."""
    on_loopback = rate == "loopback"
    place: AbstractContextManager[Network]
    place = nullcontext(loopback(options.ranks)) if on_loopback else shaped(options.ranks, rate)
    with place as network:
        found = json.loads(run_on(network, "tests.bench.wire", sys.argv[1:]).splitlines()[-1])
    counted = all(host.counted for host in network.hosts)
    samples = {name: [Sample(*sample) for sample in steps] for name, steps in found["samples"].items()}
    return [_row(name, rate, samples, found["plan_bytes"], counted) for name in samples]


def _row(
    name: str, rate: str, samples: Mapping[str, Sequence[Sample]], plan_bytes: Mapping[str, int], counted: bool
) -> dict[str, Any]:
    mine, steps = samples[name], len(samples[name])
    seconds = {case: [sample.seconds for sample in of] for case, of in samples.items()}
    least_cpu = {case: min(sample.cpu_seconds for sample in of) for case, of in samples.items()}
    whole = "whole prefix"
    measured, plan = sum(sample.measured for sample in mine), plan_bytes[name] * steps
    return {
        "case": name,
        "rate": rate,
        "ratio": min(seconds[name]) / min(seconds["standard"]),
        "median": median(a / b for a, b in zip(seconds[name], seconds["standard"], strict=True)),
        "over_whole": min(seconds[name]) / min(seconds[whole]) if whole in seconds else None,
        "bytes_over_whole": plan_bytes[name] / plan_bytes[whole] if whole in seconds else None,
        "step_seconds": min(seconds[name]),
        "cpu_ratio": least_cpu[name] / least_cpu["standard"],
        "bytes_plan": plan,
        "bytes_sent": sum(sample.sent for sample in mine),
        "bytes_measured": measured if counted else None,
        "measured_over_plan": measured / plan if counted else None,
    }


def _rank(options: argparse.Namespace) -> None:
    """What runs on every host; rank 0 prints the samples of all."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from attnres_train.parallel.config import ParallelConfig
    from attnres_train.parallel.grid import build_grid

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=options.rendezvous,
        rank=int(options.rank),
        world_size=options.ranks,
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
    )
    grid = build_grid(ParallelConfig(pipeline=options.ranks, virtual=options.virtual), seed=1)
    names = list(dict.fromkeys(["standard", *options.cases]))
    cases = {name: _case(options, grid, name) for name in names}
    mine = _take_turns(cases, options, grid)
    everybody: list[Any] = [None] * options.ranks
    dist.all_gather_object(everybody, mine, group=grid.control)
    samples = {
        name: [_of_all(ranks) for ranks in zip(*(one[name] for one in everybody), strict=True)] for name in names
    }
    if options.rank == "0":
        print(json.dumps({"samples": samples, "plan_bytes": {name: case.plan_bytes for name, case in cases.items()}}))
    dist.barrier(group=grid.control)


def _of_all(ranks: Sequence[Sample]) -> Sample:
    """One step as the slowest rank saw it, and what all ranks spent on it."""
    seconds, cpu_seconds, sent, measured = zip(*ranks, strict=True)
    return Sample(max(seconds), sum(cpu_seconds), sum(sent), sum(measured))


def _take_turns(cases: Mapping[str, Case], options: argparse.Namespace, grid: Any) -> dict[str, list[Sample]]:
    """Steps of every case on this rank, each round in another order, after a round that does not count."""
    import torch.distributed as dist

    names = list(cases)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for turn in range(-1, options.steps):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            dist.barrier(group=grid.control)
            left, cpu_started, started = sent_bytes(options.interface), time.process_time(), time.perf_counter()
            sent = cases[name].step()
            seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
            dist.barrier(group=grid.control)
            if turn >= 0:
                samples[name].append(Sample(seconds, cpu_seconds, sent, sent_bytes(options.interface) - left))
    return samples


def _case(options: argparse.Namespace, grid: Any, name: str) -> Case:
    """The stages of this rank, in their engine, and one whole step over them."""
    from attnres_train.setup import Setup
    from attnres_train.trainer.build import build_parts

    config = _config(options, name)
    setup = Setup.of(config, grid.world_size, VOCABULARY)
    parts = build_parts(setup, replace(grid, parallel=config.parallel))
    batches = _batches(options)

    def step() -> int:
        parts.engine.zero_grad()
        traffic = parts.pipeline.run(parts.engine.chunks, batches).traffic
        parts.engine.step(1e-4)
        return traffic.forward_bytes + traffic.backward_bytes

    slices = setup.wire.slices_total + setup.wire.slices_back_total
    return Case(step, slices * setup.slice_bytes * options.micro_batches)


def _config(options: argparse.Namespace, name: str) -> Any:
    from attnres_train.config.run_config import RunConfig
    from attnres_train.depth.config import ResidualConfig
    from attnres_train.model.config import ModelConfig
    from attnres_train.optim.config import OptimizerConfig, ScheduleConfig
    from attnres_train.parallel.config import ParallelConfig
    from attnres_train.trainer.config import TrainingConfig

    block_size = 2 * options.layers // options.blocks
    block = ResidualConfig(mode="block", block_size=block_size)
    return RunConfig(
        model=ModelConfig(
            num_layers=options.layers,
            hidden_size=options.width,
            ffn_hidden_size=options.width * 8 // 3 // 64 * 64,
            num_attention_heads=max(1, options.width // 64),
        ),
        residual=ResidualConfig(mode="standard") if name == "standard" else block,
        optimizer=OptimizerConfig(learning_rate=1e-4, clip_grad_norm=1.0),
        schedule=ScheduleConfig(warmup_steps=0),
        training=TrainingConfig(
            global_batch_size=options.batch * options.micro_batches,
            micro_batch_size=options.batch,
            sequence_length=options.sequence,
            steps=1,
            precision="fp32",
        ),
        parallel=ParallelConfig(pipeline=options.ranks, virtual=options.virtual, balance="layers", **CASES[name]),
    )


def _batches(options: argparse.Namespace) -> list[Any]:
    import torch

    from tests.distributed.tiny import SyntheticBatch

    generator = torch.Generator().manual_seed(1)
    shape = (options.micro_batches, options.batch, options.sequence + 1)
    tokens = torch.randint(VOCABULARY, shape, generator=generator)
    mask = torch.ones(options.batch, options.sequence)
    return [SyntheticBatch(one[:, :-1].contiguous(), one[:, 1:].contiguous(), mask) for one in tokens]


if __name__ == "__main__":
    main()
