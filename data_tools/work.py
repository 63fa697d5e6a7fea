"""The work folder, PREFIX.work: shards that are finished, so that a killed run need not begin again.

A finished shard is found by where its pieces lie, tokenizer and options, and used where the bytes that lie there are
those it was made of. Its facts are written last and by a rename, so a shard that has facts is whole; the CRC-32 says so
again when it is used.

    KEY.bin       tokens, as in the pair
    KEY.lengths   tokens of each document, int32
    KEY.metadata  a line a document, with --metadata: piece TAB record TAB JSON object
    KEY.skipped   a line a bad record: piece TAB record TAB records that are lost with it TAB kind TAB reason
    KEY.json      the facts

Pieces count from 0 in their shard, records (lines or rows) from 1 in their piece.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from dataclasses import field
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from data_tools.pieces import Shard

WORK_VERSION = 3
CONTENTS = ("bin", "lengths", "metadata", "skipped")


@dataclass(kw_only=True, config=ConfigDict(extra="forbid"))
class ShardFacts:
    """What a shard gave, counted while it is worked on; `piece_records` are the lines or rows of each of its pieces.

    `digests` are of the bytes on disk of each piece, as they were read.
    `blank` are the first documents without text, each by piece and record; `lost` counts the characters of text that
    do not come back from the tokens; `without` counts the documents without a key that --metadata asks for.
    `is_whole` is False where the work on it ended at a bad record that the policy does not allow.
    """

    documents: int = 0
    tokens: int = 0
    largest_id: int | None = None
    bin_crc32: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    piece_records: list[int] = field(default_factory=list)
    digests: tuple[str, ...] = ()
    is_whole: bool = True
    blank: list[tuple[int, int]] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    without: Counter[str] = field(default_factory=Counter)


class WorkFolder:
    """The folder, and the keys of shards in it for one way of making them.

    `recipe` is everything but the inputs that the bytes of a shard depend on.
    """

    def __init__(self, prefix: str | Path, recipe: dict[str, object]):
        self.path = Path(f"{prefix}.work")
        self._recipe = json.dumps([WORK_VERSION, recipe], sort_keys=True)

    def key(self, shard: Shard) -> str:
        """What `shard` is kept under."""
        digest = hashlib.blake2b(self._recipe.encode(), digest_size=16)
        for piece in shard.pieces:
            made_of = (str(piece.path.resolve()), piece.start, piece.end, piece.offset, piece.bytes)
            digest.update(json.dumps(made_of).encode())
        return digest.hexdigest()

    def file(self, key: str, content: str) -> Path:
        return self.path / f"{key}.{content}"

    def facts(self, key: str) -> ShardFacts | None:
        """What the shard gave, if it is finished and all of it is there."""
        try:
            facts = TypeAdapter(ShardFacts).validate_json(self.file(key, "json").read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        return facts if all(self.file(key, content).is_file() for content in CONTENTS) else None

    def finish(self, key: str, facts: ShardFacts) -> None:
        """Give the files written aside by this process their names, the facts last."""
        for content in CONTENTS:
            os.replace(self.aside(key, content), self.file(key, content))
        aside = self.aside(key, "json")
        aside.write_bytes(TypeAdapter(ShardFacts).dump_json(facts))
        os.replace(aside, self.file(key, "json"))

    def forget(self, key: str) -> None:
        """Remove a finished shard."""
        for content in ("json", *CONTENTS):
            self.file(key, content).unlink(missing_ok=True)

    def aside(self, key: str, content: str) -> Path:
        """Where this process writes; another that works on the same shard does not get in its way."""
        return self.path / f"{key}.{content}.{os.getpid()}"

    def open(self) -> None:
        """Make the folder, and clear what killed processes left unfinished."""
        self.path.mkdir(parents=True, exist_ok=True)
        for left in self.path.iterdir():
            if left.suffix.removeprefix(".").isdigit():
                left.unlink(missing_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_if_nothing_is_finished(self) -> None:
        if not any(self.path.glob("*.json")):
            self.remove()
