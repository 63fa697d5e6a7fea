"""Prove that a pair is whole and says what its sources say.

python -m data_tools.verify PREFIX [--tokenizer M [--text]]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnres_train.data.files import sha256_of_file
from attnres_train.data.indexed import IndexedReader
from attnres_train.data.manifest import Manifest, lists_of, open_pair
from attnres_train.data.paths import bin_path, idx_path
from attnres_train.errors import Problem, Refused, refuse
from attnres_train.tokenizer.load import load_tokenizer_of
from attnres_train.tokenizer.protocol import Tokenizer
from attnres_train.tokenizer.words import SPACE_PIECE, groups
from data_tools.bad_records import BadRecords
from data_tools.command import Report, Tool, ToolParser
from data_tools.pool import Advance, WorkerPool
from data_tools.progress import Tell, progress
from data_tools.records import Reading, documents_of
from data_tools.sources import same_sources
from data_tools.statistics import document_blocks

DESCRIPTION = """\
Read every byte of PREFIX.bin and PREFIX.idx and hold them against PREFIX.json: checksums, counts, the largest id,
and one end-of-document piece in each document, at its end. With --text the sources are read again as well, and the
text of every stored document is compared with that of its source, so that nothing was lost, repeated or invented.
Documents with the character U+2581, which sentencepiece gives back as a space, are counted and compared so.

Exit code 2 where anything differs, with what and where.
"""

BATCH_BYTES = 1 << 20
MOST_TOLD = 20


def add_options(parser: ToolParser) -> None:
    parser.add_pair()
    parser.add_argument("--tokenizer", metavar="MODEL", help="the tokenizer that the pair was made with")
    parser.add_argument("--text", action="store_true", help="compare every document with its source")
    parser.add_argument(
        "--sources",
        nargs="+",
        metavar="FILE",
        help="where the sources are now, in the order of the manifest (default: where they were)",
    )
    parser.add_workers("decode")


def verify(arguments: argparse.Namespace) -> Report:
    """Compare everything.

    Raises Refused, naming what differs, for a pair that is not what its manifest or its sources say.
    """
    reader, manifest = open_pair(arguments.prefix)
    if manifest is None:
        raise refuse(arguments.prefix, "has no manifest to compare with", "only `inspect` can look at such a pair")
    tokenizer = load_tokenizer_of(arguments.tokenizer, manifest.tokenizer_fingerprint)
    _check_checksums(arguments.prefix, manifest)
    _check_tokens(reader, manifest)
    report: Report = {"prefix": arguments.prefix, "documents": reader.num_documents, "tokens": reader.num_tokens}
    report |= {"checksums": "as written", "end_of_document": "none" if manifest.eod_id is None else "one a document"}
    if arguments.text:
        report |= _check_text(arguments, reader, manifest, tokenizer)
    return report


def _check_checksums(prefix: str, manifest: Manifest) -> None:
    pair = [(bin_path(prefix), manifest.bin_sha256), (idx_path(prefix), manifest.idx_sha256)]
    for path, stored in pair + lists_of(manifest, prefix):
        if not path.is_file():
            raise refuse(str(path), "is missing, says the manifest", "copy it again")
        if (found := sha256_of_file(path)) != stored:
            raise refuse(str(path), f"has SHA-256 {found}, the manifest says {stored}", "copy the pair again")


def _check_tokens(reader: IndexedReader, manifest: Manifest) -> None:
    """Ids in the vocabulary, the largest as said, and the end-of-document id where it belongs."""
    largest: int | None = None
    for block in document_blocks(reader):
        lengths, tokens = block.lengths, block.tokens
        if not tokens.size:
            continue
        highest = int(tokens.max())
        largest = highest if largest is None else max(largest, highest)
        if manifest.eod_id is not None:
            ends = lengths.cumsum()
            counts = np.diff(np.concatenate(([0], np.cumsum(tokens == manifest.eod_id)))[np.concatenate(([0], ends))])
            last = tokens[np.maximum(ends - 1, 0)]
            wrong = np.flatnonzero((counts != 1) | (last != manifest.eod_id) | (lengths == 0))
            if wrong.size:
                number = block.first + int(wrong[0])
                what = f"has {int(counts[wrong[0]])} end-of-document ids, or not at its end"
                raise refuse(f"{reader.prefix}: document {number}", what, "make the pair again")
    if largest != manifest.largest_id:
        what = f"the largest id is {largest}, the manifest says {manifest.largest_id}"
        raise refuse(str(reader.prefix), what, "make the pair again")


def _check_text(
    arguments: argparse.Namespace, reader: IndexedReader, manifest: Manifest, tokenizer: Tokenizer | None
) -> Report:
    if tokenizer is None:
        raise refuse("--text", "needs the tokenizer to decode with", "pass --tokenizer MODEL")
    if manifest.part is not None or "merged_pairs" in manifest.options:
        what = "is a part, or was joined from pairs that were read in different ways"
        raise refuse(arguments.prefix, what, "verify the pairs it was made of, or merge all parts first")
    files = [Path(name) for name in arguments.sources or [source.path for source in manifest.sources]]
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        raise Refused([Problem(name, "a source is missing", "name the sources with --sources") for name in missing])
    if not same_sources(files, manifest.sources):
        raise refuse("sources", "are not those that the pair was made of", "name the right ones with --sources")
    compare = TextCompare(reader, tokenizer, manifest.eod_id is not None)
    bad = BadRecords("skip", None)
    total = Counter[str]()
    different: list[int] = []
    with (
        progress("verify", sum(path.stat().st_size for path in files)) as tell,
        WorkerPool(compare, arguments.workers) as pool,
    ):
        for counts, found in pool.map(_batches(files, Reading.of(manifest.options), bad, tell)):
            total.update(counts)
            different += found
    if total["documents"] != reader.num_documents:
        what = f"the sources hold {total['documents']} documents, the pair {reader.num_documents}"
        raise refuse(arguments.prefix, what, "make the pair again")
    if different:
        numbers = ", ".join(map(str, different[:MOST_TOLD]))
        what = f"the text of {len(different)} documents is not that of the source: documents {numbers}"
        raise refuse(
            arguments.prefix, what, "make the pair again with a tokenizer that keeps text, if it has to be kept"
        )
    without = f"; {bad.total:,} records of the sources are not among them" if bad.total else ""
    text = f"every document says what its source says{without}"
    return {"text": text, "documents_with_u2581": total["with_space_sign"], **bad.report()}


def _batches(files: Sequence[Path], reading: Reading, bad: BadRecords, tell: Tell) -> Iterator[tuple[int, list[str]]]:
    """Texts of consecutive documents, and the number of the first of them in the pair."""
    first = 0
    documents = (document for document in documents_of(files, reading, bad, tell) if not document.is_blank)
    for group in groups(documents, lambda document: document.text_bytes, BATCH_BYTES):
        yield first, [document.text for document in group]
        first += len(group)


@dataclass(frozen=True)
class TextCompare:
    """The work of one process: stored documents, decoded, against texts."""

    reader: IndexedReader
    tokenizer: Tokenizer
    has_eod: bool

    def __call__(self, batch: tuple[int, list[str]], advance: Advance) -> tuple[Counter[str], list[int]]:
        """Counts of what was compared, and the numbers of the documents that differ."""
        first, texts = batch
        different: list[int] = []
        with_sign = 0
        for number, text in enumerate(texts, start=first):
            if number >= self.reader.num_documents:  # the counts will be told to differ
                continue
            ids = self.reader.document(number).tolist()
            wanted = text.replace(SPACE_PIECE, " ")
            with_sign += wanted != text
            found = self.tokenizer.decode(ids[:-1] if self.has_eod else ids)
            if found not in (text, wanted):
                different.append(number)
        return Counter(documents=len(texts), with_space_sign=with_sign), different


main = Tool("verify", DESCRIPTION, add_options, verify)


if __name__ == "__main__":
    sys.exit(main())
