"""The work of one process on one shard: documents to tokens, in the work folder."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from attnres_train.data.indexed import Tokens
from attnres_train.data.indexed_writer import UnstorableDocument, pack_documents
from attnres_train.errors import Refused, refuse
from attnres_train.strict_json import as_text, dumps
from attnres_train.tokenizer.loss import LOSSLESS, loss_in_words, lost_characters
from attnres_train.tokenizer.protocol import Encoded, Tokenizer
from attnres_train.tokenizer.words import SPACE_PIECE, groups
from data_tools.assemble import count_before
from data_tools.bad_records import MOST_LISTED
from data_tools.pieces import Piece, Shard
from data_tools.pool import Advance
from data_tools.records import BadRecord, Document, Reading, read_documents
from data_tools.sources import digest_of
from data_tools.work import CONTENTS, ShardFacts, WorkFolder

BATCH_BYTES = 2 << 20
"""What is held and encoded at once: enough for words to repeat."""
BYTES_A_RECORD = 500
"""What a record takes in memory besides its text and line, such as one that is blank."""


@dataclass(frozen=True)
class ShardEncoder:
    """Shards to finished shards in `folder`; `eod_id` None appends nothing.

    Work on a shard ends early at the first bad record beyond `most_bad` of them (None: any number is allowed).
    With `refuse_loss` a text that does not come back from its tokens ends all.
    """

    tokenizer: Tokenizer
    reading: Reading
    eod_id: int | None
    most_bad: int | None
    folder: WorkFolder
    refuse_loss: bool = False

    def __call__(self, shard: Shard, advance: Advance) -> ShardFacts:
        key = self.folder.key(shard)
        status, digests = _as_it_is(shard)
        kept = self.folder.facts(key)
        if kept is not None and kept.digests == digests:
            advance(shard.bytes)
            return kept
        with ExitStack() as stack:
            files = {c: stack.enter_context(open(self.folder.aside(key, c), "wb")) for c in CONTENTS}
            facts = _ShardWork(self, files, advance).run(shard)
        facts.digests = digests
        status_now = [_status(piece.path) for piece in shard.pieces]
        if status_now != status and _as_it_is(shard)[1] != digests:
            names = ", ".join(str(piece.path) for piece in shard.pieces[:3])
            raise refuse(names, "changed while it was read", "run again when it is complete")
        if facts.is_whole:
            self.folder.finish(key, facts)
        else:
            # Its skipped records are still asked for.
            self.folder.aside(key, "skipped").replace(self.folder.file(key, "skipped"))
            for content in set(CONTENTS) - {"skipped"}:
                self.folder.aside(key, content).unlink()
        return facts


def _as_it_is(shard: Shard) -> tuple[list[tuple[int, ...]], tuple[str, ...]]:
    """The status of each piece's file, and the digest of its bytes."""
    return [_status(piece.path) for piece in shard.pieces], tuple(digest_of(piece) for piece in shard.pieces)


def _status(path: Path) -> tuple[int, ...]:
    """What tells that a file was written to, whatever time it was given afterwards."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise refuse(str(path), "is gone since the run began", "put it back and run again") from None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class _ShardWork:
    """What is held and counted while one shard is worked on."""

    def __init__(self, encoder: ShardEncoder, files: Mapping[str, BinaryIO], advance: Advance):
        self.encoder = encoder
        self.files = files
        self.advance = advance
        self.place = 0
        self.facts = ShardFacts()

    def run(self, shard: Shard) -> ShardFacts:
        numbers = self.facts.piece_records
        for self.place, piece in enumerate(shard.pieces):
            numbers.append(0)
            for batch in groups(self._records(piece), _held_bytes, BATCH_BYTES):
                numbers[-1] = batch[-1].number or numbers[-1]
                self._encode(piece, [record for record in batch if isinstance(record, Document)])
            if self._is_over():
                self.facts.is_whole = False
                break
        return self.facts

    def _is_over(self) -> bool:
        return self.encoder.most_bad is not None and self.facts.skipped.total() > self.encoder.most_bad

    def _records(self, piece: Piece) -> Iterator[Document | BadRecord]:
        """The records of `piece`, up to the one that is a bad record too many."""
        for record in read_documents(piece, self.encoder.reading, self.advance):
            if isinstance(record, BadRecord):
                self._skip(record)
            yield record
            if isinstance(record, BadRecord) and self._is_over():
                return

    def _skip(self, bad: BadRecord) -> None:
        self.facts.skipped[bad.kind] += bad.records
        number = "" if bad.number is None else str(bad.number)
        reason = " ".join(bad.reason.split())
        line = f"{self.place}\t{number}\t{bad.records}\t{bad.kind}\t{reason}\n"
        self.files["skipped"].write(line.encode(errors="backslashreplace"))

    def _encode(self, piece: Piece, records: list[Document]) -> None:
        documents = [document for document in records if not document.is_blank]
        blank = [(self.place, record.number) for record in records if record.is_blank]
        facts, counts = self.facts, self.facts.counts
        counts["blank_documents"] += len(blank)
        facts.blank += blank[: MOST_LISTED - len(facts.blank)]
        if not documents:
            return
        tokenizer, eod_id = self.encoder.tokenizer, self.encoder.eod_id
        try:
            encoded = _encoded(tokenizer, documents)
            if not tokenizer.keeps_text:
                self._count_lost(documents, encoded)
            ids: Tokens = encoded.ids
            lengths = encoded.lengths
            if eod_id is not None:
                ids, lengths = _with_ends(ids, lengths, eod_id)
            packed = pack_documents(ids, lengths, tokenizer.vocab_size)
        except UnstorableDocument as error:
            key = f"{piece.path}:{count_before(piece) + documents[error.index].number}"
            raise refuse(key, error.message, error.remedy) from None
        self.files["bin"].write(packed.data)
        self.files["lengths"].write(packed.lengths.tobytes())
        facts.bin_crc32 = zlib.crc32(packed.data, facts.bin_crc32)
        facts.documents += len(documents)
        facts.tokens += ids.size
        if packed.largest_id is not None:
            facts.largest_id = max(facts.largest_id or 0, packed.largest_id)
        counts["characters"] += sum(len(document.text) for document in documents)
        counts["text_bytes"] += sum(document.text_bytes for document in documents)
        counts["space_sign_characters"] += sum(document.text.count(SPACE_PIECE) for document in documents)
        counts["cut_words"] += encoded.cut_words
        if tokenizer.unk_id is not None:
            counts["unknown_tokens"] += int(np.count_nonzero(ids == tokenizer.unk_id))
        self._write_metadata(documents)
        self.advance(0, ids.size)

    def _count_lost(self, documents: list[Document], encoded: Encoded) -> None:
        """Decode what was encoded. Raises UnstorableDocument where a loss is refused."""
        each = np.split(encoded.ids, encoded.lengths.cumsum()[:-1])
        for index, (document, ids) in enumerate(zip(documents, each, strict=True)):
            decoded = self.encoder.tokenizer.decode(ids.tolist())
            if decoded == document.text:
                continue
            lost = lost_characters(document.text, decoded)
            found = {"lost_characters": lost.total(), "altered_documents": int(not lost)}
            if self.encoder.refuse_loss:
                words = loss_in_words({**found, "characters": len(document.text)}, lost)
                raise UnstorableDocument(index, f"--no-loss: {words}", LOSSLESS)
            self.facts.lost += lost
            self.facts.counts.update(found)

    def _write_metadata(self, documents: list[Document]) -> None:
        keys = self.encoder.reading.metadata_keys
        if not keys:
            return
        for document in documents:
            self.facts.without.update(key for key in keys if key not in document.fields)
            rest = dumps({key: document.fields.get(key) for key in keys}, default=as_text)
            self.files["metadata"].write(f"{self.place}\t{document.number}\t{rest}\n".encode())


def _held_bytes(record: Document | BadRecord) -> int:
    # The line may hold much besides the text.
    return BYTES_A_RECORD + (max(record.text_bytes, len(record.raw)) if isinstance(record, Document) else 0)


def _encoded(tokenizer: Tokenizer, documents: list[Document]) -> Encoded:
    """The ids of all `documents`. Raises UnstorableDocument for the first that the tokenizer refuses."""
    try:
        return tokenizer.encode_many([document.text for document in documents])
    except Refused:
        for index, document in enumerate(documents):
            try:
                tokenizer.encode_many([document.text])
            except Refused as refused:
                problem = refused.problems[0]
                raise UnstorableDocument(index, f"{problem.key} {problem.message}", problem.remedy) from None
        raise


def _with_ends(ids: Tokens, lengths: npt.NDArray[np.int64], eod_id: int) -> tuple[Tokens, npt.NDArray[np.int64]]:
    """`ids` with `eod_id` after each document. Raises UnstorableDocument for one whose text gives it."""
    found = np.flatnonzero(ids == eod_id)
    if found.size:
        document = int(np.searchsorted(lengths.cumsum(), found[0], side="right"))
        what = f"its text gives id {eod_id}, which ends documents"
        raise UnstorableDocument(document, what, "name another piece with --eod-piece")
    return np.insert(ids, lengths.cumsum(), eod_id), lengths + 1
