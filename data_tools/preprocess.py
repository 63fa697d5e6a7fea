"""Text to a `.bin/.idx` pair of tokens with its manifest.

python -m data_tools.preprocess INPUT... --tokenizer M --output PREFIX
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from attnres_train import __version__
from attnres_train.data.files import partial_path
from attnres_train.data.indexed_writer import IndexedWriter, PairFacts
from attnres_train.data.manifest import Manifest, SourceFile
from attnres_train.data.paths import bin_path, list_path
from attnres_train.errors import Refused, refuse
from attnres_train.tokenizer.loss import LOSSLESS, loss_in_words
from data_tools.assemble import Assembly
from data_tools.bad_records import BadRecords
from data_tools.command import Report, Tool, ToolParser, bad_records_of
from data_tools.encode import ShardEncoder
from data_tools.pieces import Piece
from data_tools.pool import WorkerPool
from data_tools.progress import progress
from data_tools.records import documents_of
from data_tools.sources import SourceDigests
from data_tools.task import Task, made_already, plan_task
from data_tools.work import WorkFolder

DESCRIPTION = """\
Turn text into PREFIX.bin and PREFIX.idx (tokens, the format of Megatron) and PREFIX.json (what they were
made of).

Documents are stored in the order of the inputs, whatever the number of workers, each followed by the
tokenizer's end-of-document piece. Documents without text are left out and counted. The files appear together at
the end, or not at all. A run that was killed goes on where it was: finished shards wait in PREFIX.work, and are used
where the inputs still hold the bytes they were made of. A second run over the same inputs with the same tokenizer and
options finds the work done; to know that it reads the inputs once, about a second a GB and CPU.

An input is judged by its first bytes: a pointer of Git LFS or an archive under another's name is one bad record. Of a
compressed file nothing is stored unless its end and checksum are right, for which it is decompressed twice.

Many machines can share the work: each runs the same command with its own --part K/N, over the same inputs, and
`python -m data_tools.merge` joins the parts to what one machine would have made. A `.jsonl` or `.parquet` file is
worked on by many processes at once; a compressed or `.txt` file by one, so give several.
"""


def add_options(parser: ToolParser) -> None:
    parser.add_inputs()
    parser.add_argument("--tokenizer", required=True, metavar="MODEL", help="sentencepiece model, or tokenizer.json")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="prefix of the files to write")
    parser.add_workers("encode")
    parser.add_argument("--no-eod", action="store_true", help="do not end documents with the end-of-document piece")
    parser.add_argument(
        "--eod-piece", metavar="PIECE", help="control piece that ends a document (default: the model's own end piece)"
    )
    parser.add_argument("--part", type=part, metavar="K/N", help="only part K of N, to PREFIX.part-K-of-N")
    parser.add_keys(
        "--metadata",
        "keep this key of every document, or of the names of its folders (as lang=de/), with its file and line, "
        "in PREFIX.metadata.ndjson; may be repeated; null where a document has none, refused where no document has it",
    )
    parser.add_argument(
        "--no-loss",
        action="store_true",
        help="stop at the first text that does not come back from its tokens (default: store it, and tell the loss)",
    )
    parser.add_overwrite(otherwise="refuse")


def part(text: str) -> tuple[int, int]:
    """An argument type: `K/N` with 1 <= K <= N."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no part; write K/N, for example 2/16")
    return int(found[1]), int(found[2])


def preprocess(arguments: argparse.Namespace) -> Report:
    """Make the pair, or find it made.

    Raises Refused for inputs, tokenizer or records that do not do, and for existing outputs of other origin.
    """
    started = time.monotonic()
    task = plan_task(arguments)
    made = None if arguments.existing == "replace" else made_already(task)
    folder = WorkFolder(task.prefix, task.recipe)
    if made is not None:
        _check_loss(arguments, task, made.counts)
        if not partial_path(bin_path(task.prefix)).exists():  # else it is in use, by a run that makes the pair anew
            folder.remove()
        return _report("already done", task, made) | {"warnings": _warnings(made.counts)}
    manifest, resumed, assembly = _make(task, folder, arguments)
    seconds = time.monotonic() - started
    return {
        **_report("done", task, manifest),
        **assembly.bad.report(),
        "documents_without": [{"key": key, "documents": count} for key, count in assembly.without.items()],
        "shards": len(task.shards),
        "shards_resumed": resumed,
        "workers": min(arguments.workers, len(task.shards)),
        "seconds": seconds,
        "megabytes_per_second": manifest.text_bytes / 1e6 / seconds,
        "warnings": _warnings(manifest.counts, assembly.lost),
    }


def _warnings(counts: dict[str, int], lost: dict[str, int] | None = None) -> list[str]:
    words = loss_in_words(counts, lost)
    return [f"{words}; --no-loss refuses that"] if words else []


def _check_loss(arguments: argparse.Namespace, task: Task, counts: dict[str, int]) -> None:
    if arguments.no_loss and (words := loss_in_words(counts)):
        raise refuse(task.tokenizer.name, f"--no-loss: {words}", LOSSLESS)


def _make(task: Task, folder: WorkFolder, arguments: argparse.Namespace) -> tuple[Manifest, int, Assembly]:
    """Work on the shards that are not finished, and join all; returns also how many were finished before."""
    metadata_path, skipped_path = list_path(task.prefix, "metadata"), list_path(task.prefix, "skipped")
    most_bad = bad_records_of(arguments).most_allowed
    encode = ShardEncoder(task.tokenizer, task.reading, task.eod_id, most_bad, folder, arguments.no_loss)
    keys = [folder.key(shard) for shard in task.shards]
    known = [folder.facts(key) for key in keys]
    task.tokenizer.encode_many([])  # what encoding needs is made here once, and shared by the forked workers
    with (
        progress("preprocess", sum(shard.bytes for shard in task.shards)) as tell,
        # The pool comes first: workers forked later would hold the output's lock after a kill of this process.
        WorkerPool(encode, min(arguments.workers, len(task.shards)), tell) as pool,
        IndexedWriter(
            task.prefix, task.tokenizer.vocab_size, arguments.existing, (metadata_path, skipped_path)
        ) as writer,
        SourceDigests(task.pieces, task.rest) as digests,
        _work_in(folder, keys),
    ):
        bad = bad_records_of(arguments, lambda: writer.open_extra(skipped_path))
        metadata = writer.open_extra(metadata_path) if task.reading.metadata_keys else None
        assembly = Assembly(folder, writer, bad, metadata)
        resumed = 0
        read: dict[Piece, str] = {}
        for shard, key, before, facts in zip(task.shards, keys, known, pool.map(task.shards), strict=True):
            assembly.add(shard, key, facts)
            resumed += facts == before
            read.update(zip(shard.pieces, facts.digests, strict=True))
            if key == keys[0] and len(keys) > 1 and (absent := _absent(assembly)):
                print(f"no document so far has {absent}, which --metadata asks for", file=sys.stderr)
        pair = writer.finish()
        bad.empty_files += assembly.files_without_records()
        _check_loss(arguments, task, assembly.counts)
        if pair.documents == 0 or _absent(assembly):
            folder.remove()  # it would only be found so again
            bad.blank_documents = assembly.counts["blank_documents"]
            raise _no_such_key(task, assembly) if pair.documents else bad.nothing(arguments.inputs)
        manifest = _manifest(task, pair, digests.describe(read), dict(assembly.counts), bad.total)
        begun = tuple(read[piece] for piece in task.begun)
        part_made = task.part and replace(task.part, begun=begun, rest=digests.of_rest())
        manifest = replace(manifest, lists=writer.list_digests(), part=part_made)
        writer.publish(manifest.to_json())
        folder.remove()
    return manifest, resumed, assembly


def _absent(assembly: Assembly) -> str:
    """The metadata keys that none of the documents has, if there are documents."""
    documents = assembly.writer.num_documents
    return ", ".join(repr(key) for key, count in assembly.without.items() if documents and count == documents)


def _no_such_key(task: Task, assembly: Assembly) -> Refused:
    documents = documents_of(task.files, task.reading, BadRecords("skip", None))
    keys = sorted(next(one for one in documents if not one.is_blank).fields)
    what = f"no document has {_absent(assembly)}; the first one has: {', '.join(keys[:10])}"
    return refuse("--metadata", what, "correct the key")


@contextmanager
def _work_in(folder: WorkFolder, keys: Sequence[str]) -> Iterator[None]:
    """Opens the work folder, which is the caller's alone as long as it holds the output's lock.

    Says after a failure what a second run will not have to do again.
    """
    folder.open()
    try:
        yield
    except BaseException:
        kept = sum(folder.facts(key) is not None for key in keys)
        if kept:
            total = len(keys)
            print(f"{kept} of {total} shards are finished and kept in {folder.path} for the next run", file=sys.stderr)
        folder.remove_if_nothing_is_finished()
        raise


def _manifest(
    task: Task, facts: PairFacts, sources: tuple[SourceFile, ...], counts: dict[str, int], skipped: int
) -> Manifest:
    names = ["blank_documents", "characters", "space_sign_characters", "unknown_tokens", "lost_characters"]
    names += ["altered_documents", "cut_words"]
    return Manifest(
        tokenizer_fingerprint=task.tokenizer.fingerprint,
        vocabulary_size=task.tokenizer.vocab_size,
        eod_id=task.eod_id,
        text_bytes=counts.get("text_bytes", 0),
        sources=sources,
        options=task.options,
        counts={name: counts.get(name, 0) for name in names} | {"skipped_records": skipped},
        tool_version=__version__,
        **asdict(facts),
    )


def _report(status: str, task: Task, manifest: Manifest) -> dict[str, Any]:
    return {
        "status": status,
        "output": task.prefix,
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "text_bytes": manifest.text_bytes,
        "bytes_per_token": manifest.text_bytes / max(1, manifest.tokens),
        "token_type": manifest.token_type,
        "largest_id": manifest.largest_id,
        "eod_id": manifest.eod_id,
        "vocabulary_size": manifest.vocabulary_size,
        "tokenizer_fingerprint": manifest.tokenizer_fingerprint,
        "tokenizer_keeps_text": task.tokenizer.keeps_text,
        **manifest.counts,
        **task.inputs.report(),
    }


main = Tool("preprocess", DESCRIPTION, add_options, preprocess)


if __name__ == "__main__":
    sys.exit(main())
