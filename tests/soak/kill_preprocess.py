"""Preprocessing killed at random moments and started again must end in the very bytes of an undisturbed run.

    python -m tests.soak.kill_preprocess                  50 kills: a few minutes on 2 cores
    python -m tests.soak.kill_preprocess --kills 10 --workers 3

A corpus of plain, compressed and parquet files is preprocessed with `--metadata` and `--bad-records skip`. After a
random time, spread over a whole run, SIGKILL goes to the main process, to one of its workers, or to all of them. While
it is disturbed nothing may be under a final name. After a kill the same command is started again, until `--kills` are
spent, a round at a time: each round begins in an empty folder and ends when the pair is there. Then `.bin`, `.idx`,
manifest, metadata and the list of skipped records are compared, and nothing else may be left.

Exit code 0, or 1 with the failures, and the folder is kept.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
from backports import zstd
from pyarrow import parquet

from attnres_train.tokenizer.training import TrainingOptions, train_model

ENDINGS = (".bin", ".json", ".idx", ".metadata.ndjson", ".skipped.ndjson")
WORDS = "the union of the states and their people depth attention over residual stream layer token".split()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="attnres-kill-"))
    command = _prepare(folder, chance, options.workers)
    seconds = _undisturbed(command, folder)
    told: Counter[str] = Counter()
    failures: list[str] = []
    while told["kills"] < options.kills:
        failures += _round(command, folder, seconds, chance, options.kills, told)
        shutil.rmtree(folder / "disturbed")
    print("\n".join(failures))
    summary = ", ".join(f"{count} {what}" for what, count in sorted(told.items()))
    print(f"a run takes {seconds:.1f} s; {summary}; {len(failures)} failures")
    if not failures:
        shutil.rmtree(folder)
    return 1 if failures else 0


def _prepare(folder: Path, chance: random.Random, workers: int) -> list[str]:
    """Corpus and tokenizer; returns the command, whose output is still to be named."""

    def text() -> str:
        return " ".join(chance.choice(WORDS) + str(chance.randrange(10**6)) for _ in range(chance.randrange(1, 400)))

    def lines(count: int) -> bytes:
        made = [json.dumps({"id": i, "text": text()}) if i % 97 else "{" for i in range(count)]
        return ("\n".join(made) + "\n").encode()

    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "a.jsonl").write_bytes(lines(1500))
    (corpus / "b.jsonl.gz").write_bytes(gzip.compress(lines(400)))
    (corpus / "c.jsonl.zst").write_bytes(zstd.compress(lines(400)))
    (corpus / "d.jsonl.bz2").write_bytes(bz2.compress(lines(400)))
    rows = pa.table({"id": range(900), "text": [text() for _ in range(900)]})
    parquet.write_table(rows, corpus / "e.parquet", row_group_size=100)
    (folder / "m.model").write_bytes(train_model([text() for _ in range(200)], TrainingOptions(vocab_size=500)))
    options = ["--tokenizer", str(folder / "m.model"), "--metadata", "id", "--bad-records", "skip"]
    tool = [sys.executable, "-m", "data_tools.preprocess", str(corpus), *options, "--workers", str(workers)]
    return [*tool, "--output"]


def _undisturbed(command: list[str], folder: Path) -> float:
    (folder / "undisturbed").mkdir()
    started = time.monotonic()
    subprocess.run([*command, str(folder / "undisturbed" / "c")], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


def _round(
    command: list[str], folder: Path, seconds: float, chance: random.Random, most_kills: int, told: Counter[str]
) -> list[str]:
    """Kill and start again until a run gets through, or is let through; returns what is wrong."""
    output = folder / "disturbed"
    output.mkdir()
    failures = []
    for attempt in range(1, 1000):
        process = subprocess.Popen([*command, str(output / "c")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        may_kill = told["kills"] < most_kills and attempt <= 5
        try:
            process.wait(chance.uniform(0.0, 1.1 * seconds) if may_kill else 60)
        except subprocess.TimeoutExpired:
            target = _kill(process, chance)
            told.update([f"kills of {target}", "kills"])
            code = process.wait(10)
            if target == "a worker" and code not in (2, -signal.SIGKILL, 0):
                failures.append(f"round {told['rounds']}: exit code {code} after a worker was killed")
            named = sorted(path.name for path in output.iterdir() if path.name.removeprefix("c") in ENDINGS)
            # The index is named last: where it is, all must be, and only the end of the process was disturbed.
            if "c.idx" in named and len(named) < len(ENDINGS):
                failures.append(f"round {told['rounds']}: only {named} are there after a kill")
            told.update(["kills between renames"] if named and "c.idx" not in named else [])
            if code != 0:
                continue
        if process.wait() != 0:
            errors = process.stderr.read().decode() if process.stderr else ""
            return [*failures, f"round {told['rounds']}: ended with {process.returncode}: {errors}"]
        break
    told["rounds"] += 1
    wanted = {f"c{ending}" for ending in ENDINGS}
    found = {path.name for path in output.iterdir()}
    if found != wanted:
        failures.append(f"round {told['rounds']}: left {sorted(found)}")
    for name in sorted(wanted & found):
        if (output / name).read_bytes() != (folder / "undisturbed" / name).read_bytes():
            failures.append(f"round {told['rounds']}: {name} differs")
    return failures


def _kill(process: subprocess.Popen[bytes], chance: random.Random) -> str:
    """SIGKILL to one or all of the processes; returns to whom."""
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    except OSError:
        children = []
    target = chance.choice(("the main process", "a worker", "all")) if children else "the main process"
    pids = [process.pid] if target == "the main process" else [int(chance.choice(children or [str(process.pid)]))]
    if target == "all":
        pids = [process.pid, *map(int, children)]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return target


if __name__ == "__main__":
    sys.exit(main())
