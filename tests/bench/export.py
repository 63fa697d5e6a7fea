"""What `attnres export` takes of 1 GB of weights: memory beside what is imported, and time beside that of plain copies.

    python -m tests.bench.export [--folder FOLDER] [--mib 1024]

The copies, made in turn with the export, move as many bytes: the whole checkpoint is read once for its checksums, then
its weights, and as much as the export has is written.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.depth.config import ResidualConfig
from attnres_train.engine.interface import StatePart
from attnres_train.engine.kinds import kinds_of
from attnres_train.model.config import ModelConfig
from attnres_train.model.describe import describe
from attnres_train.model.parameters import LogicalParameter
from attnres_train.parallel.config import ParallelConfig
from attnres_train.parallel.grid import build_grid, start_process_group, stop_process_group
from attnres_train.progress import TrainState

_MIB = 2**20
_VOCABULARY = 32_000
_BLOCK = 8 * _MIB
RESIDUAL = ResidualConfig(mode="block", block_size=4)


@dataclass(frozen=True)
class Weights:
    """What a save asks of an engine, with values that are all alike in each tensor."""

    model: ModelConfig
    updates: int = 1

    def parameters(self) -> Sequence[LogicalParameter]:
        described = describe(self.model, RESIDUAL, _VOCABULARY, _VOCABULARY).all
        return [
            LogicalParameter(spec, torch.empty(spec.shape, device="meta"), torch.Size(spec.shape)) for spec in described
        ]

    def share(self) -> Iterator[StatePart]:
        for logical in self.parameters():
            for kind in kinds_of(logical.spec):
                yield StatePart(
                    kind, logical, slice(0, logical.numel), torch.full((logical.numel,), 0.01).view(logical.shape)
                )


def model_of(mib: int) -> ModelConfig:
    """Width 1024; as many layers as make fp32 weights of that size."""
    width, inner = 1024, 2816
    layers = round((mib * _MIB / 4 - 2 * _VOCABULARY * width) / (4 * width * width + 3 * width * inner))
    return ModelConfig(num_layers=layers, hidden_size=width, ffn_hidden_size=inner, num_attention_heads=16)


def save(folder: Path, model: ModelConfig) -> Path:
    start_process_group(60)
    try:
        grid = build_grid(ParallelConfig(), 1)
        sections = {"model": model, "residual": RESIDUAL}
        settings = {f"{name}.{key}": value for name, part in sections.items() for key, value in asdict(part).items()}
        identity = RunIdentity((model.num_layers,), {}, {**settings, "training.sequence_length": 1024})
        saving = CheckpointSave.start(folder, Weights(model), grid, TrainState(step=1), identity)  # type: ignore[arg-type]
        saving.wait()
        published = saving.publish()
        saving.retire(keep=None)
        return published
    finally:
        stop_process_group()


EXPORT = """
import sys, time
from attnres_train.exchange.hf_export import export
from attnres_train.exchange.hf_tokenizer import without_tokenizer
from pathlib import Path
def peak():  # in KiB; that of getrusage would begin at what the parent had
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
before = peak()
begun = time.perf_counter()
options = {"dtype": "fp32", "shard_bytes": 256 << 20, "tokenizer": without_tokenizer(), "losses": {}}
export(Path(sys.argv[1]), Path(sys.argv[2]), **options)
print(time.perf_counter() - begun, (peak() - before) / 1024)
"""


def copy_seconds(checkpoint: Path, target: Path, written: int) -> float:
    """Read the checkpoint once, then `written` bytes of it again, which are written and flushed."""
    begun, left = time.perf_counter(), written
    files = sorted(checkpoint.glob("*.distcp"))
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.read(_BLOCK):
                pass
    with open(target, "wb", buffering=0) as out:
        for path in files:
            with open(path, "rb", buffering=0) as file:
                while left and (block := file.read(min(_BLOCK, left))):
                    left -= out.write(block)
        os.fsync(out.fileno())
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="on the disk that is to be measured; room for 6 times the weights")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder, model = Path(name), model_of(options.mib)
        checkpoint = save(folder, model)
        elements = sum(math.prod(logical.spec.shape) for logical in Weights(model).parameters())
        print(f"{4 * elements / _MIB:,.0f} MiB of weights")
        for number in range(options.rounds):
            target = folder / f"export-{number}"
            done = subprocess.run(
                [sys.executable, "-c", EXPORT, checkpoint, target], check=True, capture_output=True, text=True
            )
            seconds, rss_mib = map(float, done.stdout.split())
            copied = copy_seconds(checkpoint, folder / "copy", 4 * elements)
            print(
                f"export {seconds:.2f} s, {rss_mib:.0f} MiB beside imports; copies {copied:.2f} s; "
                f"speed over copies {copied / seconds:.2f}"
            )
            for path in target.iterdir():
                path.unlink()


if __name__ == "__main__":
    main()
