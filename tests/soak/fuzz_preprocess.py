"""Broken and strange inputs, preprocessed: no crash, no hang, no silent loss.

    python -m tests.soak.fuzz_preprocess                  10,000 inputs: some minutes on 2 cores
    python -m tests.soak.fuzz_preprocess --inputs 500 --seed 7

Good files of every kind are mutated (bytes flipped, cut, repeated, invented, files glued together) and preprocessed
with `--bad-records skip`. Every record must be stored, blank, or reported, and what is stored must decode to what an
oracle reads, which splits and parses all at once. Of an archive that is damaged nothing may be stored, and the damage
must be reported. The work is done in forked processes, so that a crash is seen; each input has a time limit.

Exit code 0, or 1 with the failures; each failing input is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import multiprocessing.connection
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from attnres_train.data.indexed import IndexedReader
from attnres_train.tokenizer.load import load_tokenizer
from attnres_train.tokenizer.protocol import Tokenizer
from attnres_train.tokenizer.training import TrainingOptions, train_model
from attnres_train.tokenizer.words import SPACE_PIECE
from data_tools.preprocess import main as preprocess
from tests.soak.mutations import TEXTS, Sample, bases, expected, mutate

BATCH = 100
PATIENCE_SECONDS = 120


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="attnres-fuzz-"))
    (folder / "m.model").write_bytes(train_model([*TEXTS, "plain words " * 50], TrainingOptions(vocab_size=450)))
    started = time.monotonic()
    failures: list[str] = []
    told: Counter[str] = Counter()
    for first in range(0, options.inputs, BATCH):
        numbers = range(first, min(first + BATCH, options.inputs))
        failures += _batch(folder, options.seed, numbers, told)
        if sys.stderr.isatty():
            print(f"{numbers.stop} inputs, {len(failures)} failures", file=sys.stderr)
    print("\n".join(failures))
    summary = ", ".join(f"{count:,} {what}" for what, count in sorted(told.items()))
    print(f"{options.inputs:,} inputs in {time.monotonic() - started:.0f} s: {summary}; {len(failures)} failures")
    return 1 if failures else 0


def _batch(folder: Path, seed: int, numbers: range, told: Counter[str]) -> list[str]:
    """Try some inputs in a process of their own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_try_all, args=(folder, seed, numbers, theirs))
    process.start()
    theirs.close()
    failures = []
    last = numbers.start - 1
    try:
        while last < numbers.stop - 1:
            if not ours.poll(PATIENCE_SECONDS):
                failures.append(f"input {last + 1}: still not done after {PATIENCE_SECONDS} s")
                break
            last, problem, facts = ours.recv()
            told.update(facts)
            failures += [f"input {last}: {problem}"] if problem else []
    except EOFError:
        process.join()
        failures.append(f"input {last + 1}: the process ended with {process.exitcode}")
    process.kill()
    process.join()
    return failures


def _try_all(folder: Path, seed: int, numbers: range, pipe: multiprocessing.connection.Connection) -> None:
    tokenizer = load_tokenizer(folder / "m.model")
    for number in numbers:
        chance = random.Random(f"{seed} {number}")
        samples = bases()
        sample = mutate(chance.choice(samples), chance, samples)
        path = folder / f"input-{number}{sample.ending}"
        path.write_bytes(sample.content)
        facts: Counter[str] = Counter()
        problem = try_one(path, sample, tokenizer, folder / "m.model", facts)
        if problem is None:
            path.unlink()
        pipe.send((number, problem and f"{path}: {problem}", facts))


def try_one(path: Path, sample: Sample, tokenizer: Tokenizer, model: Path, facts: Counter[str]) -> str | None:
    """What is wrong with what became of `sample`, if anything; `facts` counts."""
    prefix = path.with_suffix(".out")
    arguments = [str(path), "--tokenizer", str(model), "--output", str(prefix), "--workers", "1", "--json"]
    out, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = preprocess([*arguments, "--bad-records", "skip"])
        report = json.loads(out.getvalue())
        stored = _stored(prefix, tokenizer) if code == 0 else []
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        for left in path.parent.glob(f"{prefix.name}*"):
            if left.is_file():
                left.unlink()
    wanted = expected(sample)
    facts["damaged archives"] += wanted.is_damaged
    if code == 2:
        facts["refused"] += 1
        message = report["problems"][0]["message"]
        if not message.startswith("no document with text"):
            return f"refused: {message}"
        if wanted.is_damaged and message.endswith(", 0 bad"):
            return "damaged, but nothing was reported"
        return f"refused, but it holds {wanted.texts}" if wanted.texts and not wanted.is_damaged else None
    facts.update(stored=len(stored), blank=report["blank_documents"], skipped=report["skipped_records"])
    if wanted.texts is not None:
        texts = [text.replace(SPACE_PIECE, " ") for text in wanted.texts]
        if stored != texts:
            return f"stored {stored}, wanted {texts}"
    accounted = len(stored) + report["blank_documents"] + report["skipped_records"]
    if wanted.records is not None and accounted != wanted.records:
        return f"{accounted} records accounted for, {wanted.records} are there"
    if wanted.is_damaged and not report["skipped_records"]:
        return "damaged, but nothing was reported"
    return None


def _stored(prefix: Path, tokenizer: Tokenizer) -> list[str]:
    reader = IndexedReader(prefix)
    return [tokenizer.decode(reader.document(i).tolist()[:-1]) for i in range(reader.num_documents)]


if __name__ == "__main__":
    sys.exit(main())
