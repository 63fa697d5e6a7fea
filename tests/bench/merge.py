"""What `attnres merge` takes of checkpoints: memory beside what is imported, and time beside that of plain copies.

    python -m tests.bench.merge [--folder FOLDER] [--mib 1024] [--checkpoints 2]

The copies, made in turn with the merge, read as many bytes (each checkpoint once for its checksums, its weights once
more) and write as many. A checkpoint takes three times its weights on the disk.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.export import Weights, model_of, save

_MIB = 2**20
_BLOCK = 8 * _MIB
MERGE = """
import sys, time
from attnres_train.exchange.merge import merge
from pathlib import Path
def kib(name):
    return int(Path("/proc/self/status").read_text().split(name + ":")[1].split()[0])
Path("/proc/self/clear_refs").write_text("5")  # the most from here on
before = kib("VmRSS")
begun = time.perf_counter()
sources = [Path(path) for path in sys.argv[2:]]
merge(sources, [1.0] * len(sources), Path(sys.argv[1]))
print(time.perf_counter() - begun, (kib("VmHWM") - before) / 1024)
"""


def copy_seconds(checkpoints: Sequence[Path], target: Path, weights: int) -> float:
    """Read all of each, then `weights` bytes of it once more; those of the last are written and flushed."""
    begun = time.perf_counter()
    with open(target, "wb", buffering=0) as out:
        for checkpoint in checkpoints:
            (path,) = checkpoint.glob("*.distcp")
            for limit in (path.stat().st_size, weights):
                left = limit
                with open(path, "rb", buffering=0) as file:
                    while left and (block := file.read(min(_BLOCK, left))):
                        left -= len(block)
                        if limit == weights and checkpoint is checkpoints[-1]:
                            out.write(block)
        os.fsync(out.fileno())
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="on the disk that is to be measured")
    parser.add_argument("--mib", type=int, default=1024, help="of weights")
    parser.add_argument("--checkpoints", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder, model = Path(name), model_of(options.mib)
        checkpoints = [save(folder / f"run-{number}", model) for number in range(options.checkpoints)]
        weights = 4 * sum(math.prod(logical.spec.shape) for logical in Weights(model).parameters())
        print(f"{len(checkpoints)} checkpoints with {weights / _MIB:,.0f} MiB of weights each")
        for number in range(options.rounds):
            target = folder / f"mean-{number}"
            command = [sys.executable, "-c", MERGE, str(target), *map(str, checkpoints)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds, rss_mib = map(float, done.stdout.split())
            copied = copy_seconds(checkpoints, folder / "copy", weights)
            speed = f"speed over copies {copied / seconds:.2f}"
            print(f"merge {seconds:.2f} s, {rss_mib:.0f} MiB beside imports; copies {copied:.2f} s; {speed}")
            for path in target.iterdir():
                path.unlink()


if __name__ == "__main__":
    main()
