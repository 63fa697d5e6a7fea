"""What a pair holds.

python -m data_tools.inspect PREFIX [--documents K] [--tokenizer M]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnres_train.data.files import sha256_of_file
from attnres_train.data.indexed import IndexedReader, bin_path, idx_path
from attnres_train.data.manifest import Manifest, check_pair, read_manifest
from attnres_train.errors import refuse
from attnres_train.tokenizer.load import load_tokenizer
from attnres_train.tokenizer.protocol import Tokenizer
from data_tools.command import Report, run_tool, tool_parser, whole_number

DESCRIPTION = """\
Check that PREFIX.bin and PREFIX.idx are whole and belong together, and say what they hold: from the pair
itself, and from its manifest PREFIX.json where it has one. With --documents the first documents are shown, as
text where a tokenizer is given. With --verify every byte is read and compared with the manifest's checksums.
With --entropy every token is read for the unigram entropy: the loss of the best model without context, and so
the first bar for a trained one.
"""

ENTROPY_PART_TOKENS = 1 << 20


def build_parser() -> argparse.ArgumentParser:
    parser = tool_parser("inspect", DESCRIPTION)
    parser.add_argument("prefix", metavar="PREFIX", help="the pair's path without .bin or .idx")
    parser.add_argument("--documents", type=whole_number, default=0, metavar="K", help="show the first K documents")
    parser.add_argument("--tokenizer", metavar="MODEL", help="sentencepiece model, to show text instead of ids")
    parser.add_argument("--verify", action="store_true", help="compare the files with the manifest's checksums")
    parser.add_argument("--entropy", action="store_true", help="give the unigram entropy in nats a token")
    return parser


def inspect(arguments: argparse.Namespace) -> Report:
    """What the pair holds.

    Raises Refused for a pair that is damaged, differs from its manifest, or was made with another tokenizer.
    """
    reader = IndexedReader(arguments.prefix)
    manifest = read_manifest(arguments.prefix)
    if manifest is not None:
        check_pair(manifest, reader)
    tokenizer = load_tokenizer(arguments.tokenizer) if arguments.tokenizer else None
    if tokenizer and manifest and tokenizer.fingerprint != manifest.tokenizer_fingerprint:
        made_with = manifest.tokenizer_fingerprint
        what = f"has fingerprint {tokenizer.fingerprint}, the pair was made with {made_with}"
        raise refuse(arguments.tokenizer, what, "give the model that the pair was made with")
    report: Report = {
        "prefix": arguments.prefix,
        "documents": reader.num_documents,
        "tokens": reader.num_tokens,
    }
    report |= {"token_type": reader.type.name, **_length_facts(reader)}
    report["manifest"] = "none" if manifest is None else "present"
    if manifest is not None:
        report |= _manifest_facts(manifest)
    if arguments.entropy:
        report["unigram_entropy_nats"] = unigram_entropy_nats(reader)
    if arguments.verify:
        report["checksums"] = _verify(arguments.prefix, manifest)
    if arguments.documents:
        shown = range(min(arguments.documents, reader.num_documents))
        report["first_documents"] = [_show(reader, tokenizer, index) for index in shown]
    return report


def unigram_entropy_nats(reader: IndexedReader) -> float:
    """Entropy of the pair's token frequencies, -sum p ln p. Reads in parts, so memory stays small."""
    counts = np.zeros(1, dtype=np.int64)
    for start in range(0, reader.num_tokens, ENTROPY_PART_TOKENS):
        part = reader.window(start, min(ENTROPY_PART_TOKENS, reader.num_tokens - start))
        part_counts = np.bincount(part, minlength=len(counts))
        part_counts[: len(counts)] += counts
        counts = part_counts
    shares = counts[counts > 0] / reader.num_tokens
    return float(-(shares * np.log(shares)).sum())


def _length_facts(reader: IndexedReader) -> dict[str, Any]:
    if not len(reader.lengths):
        return {}
    lengths = np.asarray(reader.lengths)
    return {
        "shortest_sequence_tokens": int(lengths.min()),
        "median_sequence_tokens": float(np.median(lengths)),
        "longest_sequence_tokens": int(lengths.max()),
    }


def _manifest_facts(manifest: Manifest) -> dict[str, Any]:
    return {
        "text_bytes": manifest.text_bytes,
        "bytes_per_token": manifest.text_bytes / manifest.tokens,
        "largest_id": manifest.largest_id,
        "vocabulary_size": manifest.vocabulary_size,
        "eod_id": manifest.eod_id,
        "tokenizer_fingerprint": manifest.tokenizer_fingerprint,
        **manifest.counts,
        "options": ", ".join(f"{name} {value}" for name, value in manifest.options.items()),
        "tool_version": manifest.tool_version,
        "sources": [{"path": source.path, "bytes": source.bytes} for source in manifest.sources],
    }


def _verify(prefix: str, manifest: Manifest | None) -> str:
    if manifest is None:
        raise refuse(prefix, "has no manifest, so no checksums to compare with", "leave out --verify")
    for path, stored in ((bin_path(prefix), manifest.bin_sha256), (idx_path(prefix), manifest.idx_sha256)):
        found = sha256_of_file(path)
        if found != stored:
            raise refuse(str(path), f"has SHA-256 {found}, the manifest says {stored}", "copy the pair again")
    return "verified"


def _show(reader: IndexedReader, tokenizer: Tokenizer | None, index: int) -> dict[str, Any]:
    ids = reader.document(index).tolist()
    content = {"ids": ids} if tokenizer is None else {"text": tokenizer.decode(ids)}
    return {"document": index, "tokens": len(ids), **content}


def main(argv: Sequence[str] | None = None) -> int:
    return run_tool(build_parser(), inspect, argv)


if __name__ == "__main__":
    sys.exit(main())
