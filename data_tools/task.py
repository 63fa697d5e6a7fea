"""What one run of `preprocess` has to do, known before the first document is read."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from attnres_train.data.files import sha256_of_file
from attnres_train.data.manifest import Manifest, Options, Part, lists_of, open_pair
from attnres_train.data.paths import idx_path
from attnres_train.errors import Refused, refuse
from attnres_train.tokenizer.load import load_tokenizer
from attnres_train.tokenizer.protocol import Tokenizer
from data_tools.command import prefix_argument, reading_of
from data_tools.inputs import Inputs, find_inputs
from data_tools.pieces import Piece, Shard, part_of, plan_shards
from data_tools.records import Reading
from data_tools.sources import cuttable, digest_of, same_sources


@dataclass(frozen=True)
class Task:
    """The shards to make and join, and everything that their bytes depend on."""

    prefix: str
    tokenizer: Tokenizer
    eod_id: int | None
    inputs: Inputs
    files: tuple[Path, ...]
    """The inputs that this part touches."""
    shards: tuple[Shard, ...]
    part: Part | None
    rest: tuple[Piece, ...]
    """The pieces in later parts of a file that this part has begun."""
    reading: Reading
    options: Options

    @property
    def recipe(self) -> dict[str, object]:
        """What the bytes of a shard depend on, besides the inputs."""
        tokenizer = self.tokenizer.fingerprint
        return {"tokenizer": tokenizer, "eod_id": self.eod_id, "reading": asdict(self.reading)}

    @property
    def pieces(self) -> list[Piece]:
        """Of all shards, in order."""
        return [piece for shard in self.shards for piece in shard.pieces]

    @property
    def begun(self) -> list[Piece]:
        """The pieces in this part of a file that an earlier part has begun."""
        first = self.pieces[0]
        return [piece for piece in self.pieces if piece.path == first.path] if first.offset else []


def plan_task(arguments: argparse.Namespace) -> Task:
    """The task that the command line asks for.

    Raises Refused for a tokenizer or inputs that do not do, and for a part that would hold nothing.
    """
    tokenizer = load_tokenizer(arguments.tokenizer, arguments.eod_piece)
    eod_id = None if arguments.no_eod else _require_eod(tokenizer)
    reading = reading_of(arguments)
    inputs = find_inputs(arguments.inputs)
    shards = plan_shards([cuttable(path) for path in inputs.files])
    prefix, part_made = prefix_argument(arguments.output), None
    rest: tuple[Piece, ...] = ()
    if arguments.part is not None:
        number, of = arguments.part
        part_made = Part(number=number, of=of, plan=_fingerprint(inputs, shards))
        every, shards = shards, part_of(shards, number, of)
        rest = _rest(every, shards)
        prefix = f"{prefix}.part-{number:0{len(str(of))}}-of-{of}"
    return Task(
        prefix=prefix,
        tokenizer=tokenizer,
        eod_id=eod_id,
        inputs=inputs,
        files=tuple(dict.fromkeys(piece.path for shard in shards for piece in shard.pieces)),
        shards=tuple(shards),
        part=part_made,
        rest=rest,
        reading=reading,
        options=reading.options() | {"bad_records": arguments.bad_records},
    )


def _fingerprint(inputs: Inputs, shards: Sequence[Shard]) -> str:
    """Equal on machines that cut the same inputs the same way; folders may differ."""
    cuts = [(piece.path.name, piece.start, piece.end, piece.bytes) for shard in shards for piece in shard.pieces]
    return hashlib.sha256(repr((len(inputs.files), cuts)).encode()).hexdigest()


def _rest(every: Sequence[Shard], part: Sequence[Shard]) -> tuple[Piece, ...]:
    """The pieces after `part` of a file whose first piece is in it."""
    last = part[-1].pieces[-1].path
    if not any(piece.path == last and not piece.offset for shard in part for piece in shard.pieces):
        return ()
    later = every[every.index(part[-1]) + 1 :]
    return tuple(piece for shard in later for piece in shard.pieces if piece.path == last)


def _require_eod(tokenizer: Tokenizer) -> int:
    if tokenizer.eod_id is None:
        pieces = ", ".join(map(repr, tokenizer.special_pieces[:20])) or "it has none"
        remedy = f"name one of its control pieces with --eod-piece PIECE ({pieces}), or pass --no-eod"
        raise refuse(tokenizer.name, "the model has no end-of-document piece", remedy)
    return tokenizer.eod_id


def _same_inputs(task: Task, manifest: Manifest) -> bool:
    begun = manifest.part.begun if manifest.part else ()
    return same_sources(task.files, manifest.sources) and tuple(map(digest_of, task.begun)) == begun


def made_already(task: Task) -> Manifest | None:
    """The manifest of a whole pair that was made of the same inputs in the same way; None without a pair.

    Raises Refused for a whole pair of other origin, naming the differences.
    """
    if not idx_path(task.prefix).exists():
        return None
    try:
        _, manifest = open_pair(task.prefix)
    except Refused:
        manifest = None
    if manifest is None:  # a damaged pair is not done; whether it may be replaced is for the writer to say
        return None
    if any(not path.is_file() or sha256_of_file(path) != digest for path, digest in lists_of(manifest, task.prefix)):
        what = "exists, but a list beside it is missing or changed"
        raise refuse(task.prefix, what, "pass --overwrite to make it again, or name another output")
    differences = {
        "tokenizer": manifest.tokenizer_fingerprint != task.tokenizer.fingerprint,
        "end-of-document piece": manifest.eod_id != task.eod_id,
        "options": manifest.options != task.options,
        "part": (manifest.part and replace(manifest.part, begun=(), rest=())) != task.part,
        "inputs": not _same_inputs(task, manifest),
    }
    if any(differences.values()):
        what = f"exists, made with other {', '.join(name for name, differs in differences.items() if differs)}"
        raise refuse(task.prefix, what, "pass --overwrite to replace it, or name another output")
    return manifest
