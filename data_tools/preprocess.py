"""Text to a `.bin/.idx` pair of tokens with its manifest.

python -m data_tools.preprocess INPUT... --tokenizer M --output PREFIX
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnres_train import __version__
from attnres_train.data.files import Existing
from attnres_train.data.indexed import IndexedReader, IndexedWriter, PairFacts, idx_path
from attnres_train.data.manifest import Manifest, SourceFile, check_pair, read_manifest
from attnres_train.errors import Refused, refuse
from attnres_train.tokenizer.load import load_tokenizer
from attnres_train.tokenizer.protocol import Tokenizer
from attnres_train.tokenizer.words import SPACE_PIECE
from data_tools.command import (
    Report,
    add_overwrite_argument,
    add_text_arguments,
    positive_number,
    progress,
    run_tool,
    tool_parser,
)
from data_tools.inputs import Inputs, describe_sources, find_inputs, same_sources
from data_tools.pool import WorkerPool, available_cpus
from data_tools.records import BadRecord, BadRecords, Chunk, parse_chunk, read_chunks

DESCRIPTION = """\
Turn text into PREFIX.bin and PREFIX.idx (tokens, the format of Megatron) and PREFIX.json (what they were
made of).

Documents are stored in the order of the inputs, whatever the number of workers, each followed by the
tokenizer's end-of-document piece. Documents without text are left out and counted. The three files appear
together at the end, or not at all. A second run over the same inputs with the same tokenizer and options
finds the work done.
"""


def build_parser() -> argparse.ArgumentParser:
    parser = tool_parser("preprocess", DESCRIPTION)
    add_text_arguments(parser)
    parser.add_argument("--tokenizer", required=True, metavar="MODEL", help="sentencepiece model file")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="prefix of the files to write")
    parser.add_argument(
        "--workers",
        type=positive_number,
        default=available_cpus(),
        metavar="N",
        help="processes that encode (default: one a CPU)",
    )
    parser.add_argument("--no-eod", action="store_true", help="do not end documents with the end-of-document piece")
    parser.add_argument(
        "--eod-piece",
        metavar="PIECE",
        help="control piece that ends a document (default: the model's own end piece)",
    )
    add_overwrite_argument(parser)
    return parser


@dataclass(frozen=True)
class EncodedChunk:
    """The documents of a chunk as ids, int32 one after the other, and what was met on the way."""

    tokens: bytes
    lengths: list[int]
    bad: list[BadRecord]
    text_bytes: int
    blank_documents: int
    space_sign_characters: int
    unknown_tokens: int
    read_bytes: int


@dataclass(frozen=True)
class ChunkEncoder:
    """The work of one worker: a chunk of records to ids; `eod_id` None appends nothing."""

    tokenizer: Tokenizer
    text_key: str
    eod_id: int | None

    def __call__(self, chunk: Chunk) -> EncodedChunk:
        ids: list[int] = []
        lengths: list[int] = []
        bad: list[BadRecord] = []
        text_bytes = blank = space_signs = 0
        for record in parse_chunk(chunk, self.text_key):
            if isinstance(record, BadRecord):
                bad.append(record)
            elif record.is_blank:
                blank += 1
            else:
                before = len(ids)
                ids += self.tokenizer.encode(record.text)
                if self.eod_id is not None:
                    ids.append(self.eod_id)
                lengths.append(len(ids) - before)
                text_bytes += record.text_bytes
                space_signs += record.text.count(SPACE_PIECE)
        tokens = np.array(ids, dtype=np.int32)
        unknown = int(np.count_nonzero(tokens == self.tokenizer.unk_id)) if self.tokenizer.unk_id is not None else 0
        return EncodedChunk(tokens.tobytes(), lengths, bad, text_bytes, blank, space_signs, unknown, chunk.read_bytes)


def preprocess(arguments: argparse.Namespace) -> Report:
    """Make the pair, or find it made.

    Raises Refused for inputs, tokenizer or records that do not do, and for existing outputs of other origin.
    """
    started = time.monotonic()
    tokenizer = load_tokenizer(arguments.tokenizer, arguments.eod_piece)
    eod_id = None if arguments.no_eod else _require_eod(tokenizer)
    inputs = find_inputs(arguments.inputs)
    options = {"text_key": arguments.text_key, "bad_records": arguments.bad_records}
    made = None if arguments.overwrite else _made_already(arguments.output, inputs, tokenizer, eod_id, options)
    if made is not None:
        return _report("already done", arguments.output, made, inputs, tokenizer)
    sources = describe_sources(inputs.files)
    bad = BadRecords(arguments.bad_records, arguments.max_bad)
    counts = dict.fromkeys(("text_bytes", "blank_documents", "space_sign_characters", "unknown_tokens"), 0)
    existing: Existing = "replace" if arguments.overwrite else "refuse"
    encode = ChunkEncoder(tokenizer, arguments.text_key, eod_id)
    # The pool comes first: workers forked later would hold the output's lock after a kill of this process.
    with (
        WorkerPool(encode, arguments.workers) as pool,
        IndexedWriter(arguments.output, tokenizer.vocab_size, existing) as writer,
        progress("preprocess", inputs.total_bytes) as advance,
    ):
        for encoded in pool.map(read_chunks(inputs.files)):
            for record in encoded.bad:
                bad.add(record)
            writer.add_documents(np.frombuffer(encoded.tokens, np.int32), np.array(encoded.lengths, np.int64))
            for name in counts:
                counts[name] += getattr(encoded, name)
            advance(encoded.read_bytes)
        facts = writer.finish()
        _refuse_nothing(arguments.inputs, facts, counts["blank_documents"], bad)
        _refuse_changed(inputs.files, sources)
        counts["skipped_records"] = bad.total
        manifest = _manifest(tokenizer, eod_id, facts, sources, options, counts)
        writer.publish(manifest.to_json())
    report = _report("done", arguments.output, manifest, inputs, tokenizer)
    seconds = time.monotonic() - started
    return {
        **report,
        "skipped": bad.report(),
        "workers": arguments.workers,
        "seconds": seconds,
        "megabytes_per_second": counts["text_bytes"] / 1e6 / seconds,
    }


def _require_eod(tokenizer: Tokenizer) -> int:
    if tokenizer.eod_id is None:
        raise refuse(
            tokenizer.name,
            "the model has no end-of-document piece",
            "name one of its control pieces with --eod-piece PIECE, or pass --no-eod",
        )
    return tokenizer.eod_id


def _made_already(
    prefix: str, inputs: Inputs, tokenizer: Tokenizer, eod_id: int | None, options: dict[str, Any]
) -> Manifest | None:
    """The manifest of a whole pair that was made of the same inputs in the same way; None without a pair.

    Raises Refused for a whole pair of other origin, naming the differences.
    """
    if not idx_path(prefix).exists():
        return None
    try:
        manifest, reader = read_manifest(prefix), IndexedReader(prefix)
        if manifest is None:
            return None
        check_pair(manifest, reader)
    except Refused:
        # A damaged pair is not done; whether it may be replaced is for the writer to say.
        return None
    differences = {
        "tokenizer": manifest.tokenizer_fingerprint != tokenizer.fingerprint,
        "end-of-document piece": manifest.eod_id != eod_id,
        "options": manifest.options != options,
        "inputs": not same_sources(inputs.files, manifest.sources),
    }
    if any(differences.values()):
        what = f"exists, made with other {', '.join(name for name, differs in differences.items() if differs)}"
        raise refuse(prefix, what, "pass --overwrite to replace it, or name another output")
    return manifest


def _refuse_nothing(inputs: Sequence[str], facts: PairFacts, blank: int, bad: BadRecords) -> None:
    if facts.documents == 0:
        raise refuse(
            ", ".join(inputs),
            f"no document with text: {blank} blank, {bad.total} bad",
            "check --text-key and the files",
        )


def _refuse_changed(files: Sequence[Path], sources: Sequence[SourceFile]) -> None:
    for path, source in zip(files, sources, strict=True):
        if (path.stat().st_size, path.stat().st_mtime_ns) != (source.bytes, source.modified_ns):
            raise refuse(str(path), "changed while it was read", "run again when it is complete")


def _manifest(
    tokenizer: Tokenizer,
    eod_id: int | None,
    facts: PairFacts,
    sources: tuple[SourceFile, ...],
    options: dict[str, Any],
    counts: dict[str, int],
) -> Manifest:
    return Manifest(
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocabulary_size=tokenizer.vocab_size,
        eod_id=eod_id,
        text_bytes=counts["text_bytes"],
        sources=sources,
        options=options,
        counts={name: count for name, count in counts.items() if name != "text_bytes"},
        tool_version=__version__,
        **asdict(facts),
    )


def _report(status: str, prefix: str, manifest: Manifest, inputs: Inputs, tokenizer: Tokenizer) -> Report:
    return {
        "status": status,
        "output": prefix,
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "text_bytes": manifest.text_bytes,
        "token_type": manifest.token_type,
        "largest_id": manifest.largest_id,
        "eod_id": manifest.eod_id,
        "vocabulary_size": manifest.vocabulary_size,
        "tokenizer_fingerprint": manifest.tokenizer_fingerprint,
        "tokenizer_keeps_text": tokenizer.keeps_text,
        **manifest.counts,
        "ignored_files": [str(path) for path in inputs.ignored],
    }


def main(argv: Sequence[str] | None = None) -> int:
    return run_tool(build_parser(), preprocess, argv)


if __name__ == "__main__":
    sys.exit(main())
