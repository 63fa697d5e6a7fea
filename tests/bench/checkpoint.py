"""What a save costs: seconds the loop stands still, and the rate of writing beside the disk's and other writers'.

    python -m tests.bench.checkpoint                       a state of 1 GiB, on 1 rank and on 2 (data parallel)
    python -m tests.bench.checkpoint --gib 4 --ranks 2

`disk` writes as many bytes, in blocks of 4 MiB and with one fdatasync, into the same folder: `ratio` is the least
time over its least, `median` the median of ratios within rounds. All cases take turns in the same processes; a time is
the slowest rank's, from a barrier to its own end, on the wall. `synchronous` is a save until it is published, in three
parts: `asynchronous`, copies and plan, is what stops the loop when a save begins; `write` goes on beside the steps;
`publish` stops the loop again. `retire` is the rest: reading back and deleting the one before. `torch.save`, `dcp.save`
and `megatron-core` (which needs psutil) write the same tensors, already copied, with their own fsync, but without
checksums of their files.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.paired import arguments, show
from tests.distributed.state import export_state

LAYERS, VOCABULARY = 8, 512
BYTES_A_PARAMETER = 12
BLOCK_BYTES = 4 << 20
DISK_STATES, MEMORY_STATES_A_RANK = 4, 6
"""How many times the state must have room on the disk, and in memory for each rank."""
GOALS = {"asynchronous": ("synchronous", 1 / 5), "synchronous": ("disk", 2.0)}
"""Case -> at most so many times the least time of another."""

Seconds = dict[str, float]


def main() -> int:
    options = _options()
    if (problem := _no_room(options)) is not None:
        print(problem, file=sys.stderr)
        return 1
    os.environ["OMP_NUM_THREADS"] = "1"
    from tests.distributed.ranks import run_ranks

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="attnres-bench-", dir=options.folder) as folder:
        for ranks in options.ranks:
            rows += run_ranks(measure, ranks, options, Path(folder))[0]
            shutil.rmtree(folder)
    about = f"a save of {options.gib:g} GiB over a plain write to the disk: {LAYERS} layers, fp32, data parallel, "
    show(rows, options.json, about + f"one thread a rank, wall time, {options.rounds} rounds")
    if not options.json:
        for row in (row for row in rows if row["goal"] is not None):
            met = "met" if row["over_other"] <= row["goal"] else "missed"
            what = f"{row['case']} takes {row['over_other']:.3f} of {GOALS[row['case']][0]}"
            print(f"{row['ranks']} ranks: {what}, the goal {row['goal']:g} is {met}")
    return 0


def _options() -> argparse.Namespace:
    parser = arguments(__doc__.splitlines()[0], rounds=5)
    parser.add_argument("--gib", type=float, default=1.0, help="weights and moments together (default %(default)s)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, help="beside `disk`")
    parser.add_argument("--folder", help="on the disk to measure (default: the system's temporary folder)")
    return parser.parse_args()


def _no_room(options: argparse.Namespace) -> str | None:
    """Why this machine is too small, in words."""
    disk, memory = (n * options.gib for n in (DISK_STATES, MEMORY_STATES_A_RANK * max(options.ranks)))
    free = shutil.disk_usage(options.folder or tempfile.gettempdir()).free / 2**30
    pages = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    available = int(pages.split()[1]) / 2**20
    if free < disk or available < memory:
        return f"needs {disk:.1f} GiB of disk and {memory:.1f} of memory; there are {free:.1f} and {available:.1f}"
    return None


@dataclass
class Bench:
    """A model in its engine on one rank, and one copy of its state to give to other writers."""

    folder: Path
    grid: Any
    engine: Any
    step: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    bytes: int = 0
    """Of a checkpoint's files."""

    def save(self) -> Seconds:
        """One save by the product, and the seconds of its parts."""
        from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
        from attnres_train.progress import TrainState

        self.step += 1
        identity = RunIdentity((LAYERS,), {}, {})
        began = time.perf_counter()
        save = CheckpointSave.start(self.folder / "run", self.engine, self.grid, TrainState(self.step), identity)
        started = time.perf_counter()
        save.wait()
        written = time.perf_counter()
        save.publish()
        ended = time.perf_counter()
        save.retire(keep=1)
        parts = {"asynchronous": started - began, "write": written - started, "publish": ended - written}
        return {"synchronous": ended - began, **parts, "retire": time.perf_counter() - ended}

    def load(self) -> Seconds:
        """Choose the newest checkpoint, which reads and verifies its files, and load it."""
        from attnres_train.checkpoint.choose import choose_checkpoint
        from attnres_train.checkpoint.load import load_checkpoint

        began = time.perf_counter()
        choice = choose_checkpoint("must", self.folder / "run", self.grid)
        assert choice is not None
        chosen = time.perf_counter()
        self.bytes = choice.manifest.bytes
        load_checkpoint(choice.folder, choice.manifest, self.engine, self.grid, {}, {})
        return {"load": time.perf_counter() - began, "of it verifying": chosen - began}

    def disk(self) -> Seconds:
        if self.grid.rank:
            return {"disk": 0.0}
        block = memoryview(os.urandom(BLOCK_BYTES))
        began = time.perf_counter()
        with open(self.folder / "plain", "wb", buffering=0) as file:
            for start in range(0, self.bytes, BLOCK_BYTES):
                file.write(block[: self.bytes - start])
            os.fdatasync(file.fileno())
        return {"disk": time.perf_counter() - began}

    def torch_save(self) -> Seconds:
        import torch

        if self.grid.rank:
            return {"torch.save": 0.0}
        began = time.perf_counter()
        with open(self.folder / "torch.pt", "wb") as file:
            torch.save(self.state, file)
            file.flush()
            os.fsync(file.fileno())
        return {"torch.save": time.perf_counter() - began}

    def dcp_save(self) -> Seconds:
        import torch.distributed.checkpoint as dcp

        began = time.perf_counter()
        dcp.save(self.state, storage_writer=dcp.FileSystemWriter(self.folder / "dcp"), process_group=self.grid.control)
        return {"dcp.save": time.perf_counter() - began}

    def megatron_save(self) -> Seconds:
        from megatron.core import dist_checkpointing
        from megatron.core.dist_checkpointing import ShardedTensor

        folder = self.folder / "megatron"
        folder.mkdir(exist_ok=True)
        replica = (0, 0, self.grid.data_rank)
        made = ShardedTensor.from_rank_offsets
        sharded = {name: made(name, tensor, replica_id=replica) for name, tensor in self.state.items()}
        began = time.perf_counter()
        dist_checkpointing.save(sharded, str(folder))
        return {"megatron-core": time.perf_counter() - began}


METHODS: dict[str, Callable[[Bench], Seconds]] = {
    "disk": Bench.disk,
    "save": Bench.save,
    "load": Bench.load,
    "torch.save": Bench.torch_save,
    "dcp.save": Bench.dcp_save,
    "megatron-core": Bench.megatron_save,
}
CASES = tuple(name for name in METHODS if name != "disk" and (name != "megatron-core" or find_spec("psutil")))


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Rows of the table, on every rank of a process group."""
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    bench = _bench(options, folder)
    names = ["disk", *options.cases]
    bench.save()
    bench.load()  # tells how many bytes a checkpoint has
    samples: list[Seconds] = []
    for turn in range(-1, options.rounds):  # the first round does not count
        found: Seconds = {}
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            _clear(bench)
            dist.barrier(group=bench.grid.control)
            found |= _slowest(METHODS[name](bench), bench.grid)
        if turn >= 0:
            samples.append(found)
    for child in multiprocessing.active_children():  # megatron-core's manager would outlive this rank
        child.kill()
    return _rows(samples, bench)


def _clear(bench: Bench) -> None:
    """Take away what other writers left, and wait until the disk is at rest."""
    if bench.grid.rank == 0:
        for path in bench.folder.iterdir():
            if path.name != "run":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        os.sync()


def _slowest(mine: Seconds, grid: Any) -> Seconds:
    import torch.distributed as dist

    everybody = [mine] * grid.world_size
    dist.all_gather_object(everybody, mine, group=grid.control)
    return {name: max(one[name] for one in everybody) for name in mine}


def _rows(samples: Sequence[Seconds], bench: Bench) -> list[dict[str, Any]]:
    least = {name: min(sample[name] for sample in samples) for name in samples[0]}
    order = [name for name in ("disk", "synchronous", "asynchronous", "write", "publish", "retire") if name in least]
    return [_row(name, samples, least, bench) for name in dict.fromkeys([*order, *least])]


def _row(name: str, samples: Sequence[Seconds], least: Mapping[str, float], bench: Bench) -> dict[str, Any]:
    writes = name in ("disk", "synchronous", "torch.save", "dcp.save", "megatron-core")
    over, goal = GOALS.get(name, (None, None))
    return {
        "case": name,
        "ranks": bench.grid.world_size,
        "ratio": least[name] / least["disk"],
        "median": median(sample[name] / sample["disk"] for sample in samples),
        "seconds": least[name],
        "mib_per_second": bench.bytes / least[name] / 2**20 if writes else None,
        "durable_seconds": least["synchronous"] if name == "asynchronous" else None,
        "mib": bench.bytes / 2**20,
        "over_other": None if over is None else least[name] / least[over],
        "goal": goal,
    }


def _bench(options: argparse.Namespace, folder: Path) -> Bench:
    """The model, after one step, so that its moments are there and are not zero."""
    from attnres_train.parallel.config import ParallelConfig
    from attnres_train.parallel.grid import build_grid
    from attnres_train.setup import Setup
    from attnres_train.trainer.build import build_parts
    from tests.distributed.tiny import step_batches

    grid = build_grid(ParallelConfig(), seed=1)
    folder.mkdir(exist_ok=True)
    parts = build_parts(Setup.of(_config(options.gib), grid.world_size, VOCABULARY), grid)
    parts.engine.zero_grad()
    parts.pipeline.run(parts.engine.chunks, step_batches(0, grid.data_rank, grid.data))
    parts.engine.step(1e-4)
    bench = Bench(folder, grid, parts.engine)
    for name, state in export_state(parts.engine).items():
        bench.state |= {f"{kind}/{name}": tensor.detach().clone() for kind, tensor in vars(state).items()}
    return bench


def _config(gib: float) -> Any:
    from attnres_train.config.run_config import RunConfig
    from attnres_train.depth.config import ResidualConfig
    from attnres_train.model.config import ModelConfig
    from attnres_train.optim.config import OptimizerConfig, ScheduleConfig
    from attnres_train.trainer.config import TrainingConfig
    from tests.distributed.tiny import MICRO_BATCH, MICRO_BATCHES, TOKENS

    # A layer has 4 matrices [width, width] and 3 of [width, 8/3 width].
    width = max(64, round((gib * 2**30 / BYTES_A_PARAMETER / LAYERS / 12) ** 0.5 / 64) * 64)
    return RunConfig(
        model=ModelConfig(
            num_layers=LAYERS,
            hidden_size=width,
            ffn_hidden_size=width * 8 // 3 // 64 * 64,
            num_attention_heads=width // 64,
        ),
        residual=ResidualConfig(mode="block", block_size=4),
        optimizer=OptimizerConfig(learning_rate=1e-4, clip_grad_norm=1.0),
        schedule=ScheduleConfig(warmup_steps=0),
        training=TrainingConfig(
            global_batch_size=MICRO_BATCHES * MICRO_BATCH,
            micro_batch_size=MICRO_BATCH,
            sequence_length=TOKENS,
            steps=1,
            precision="fp32",
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
