"""The manifest beside a pair, PREFIX.json: which tokenizer made it, from what, and how much it holds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from attnres_train.data.indexed import IndexedReader
from attnres_train.data.paths import sidecar_path
from attnres_train.errors import refuse

MANIFEST_VERSION = 2
CHECKSUM = "sha256_of_manifest"
KNOWN_VERSIONS = (1, 2)
"""Version 1 had no parts, no lists and no checksum of its own; it is read as what it says."""


Options = dict[str, str | int | bool | list[str] | None]
"""The settings of the tool that the tokens depend on."""


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class SourceFile:
    """One input file, as it was when it was read; `sha256` is None where another part of the work has it."""

    path: str
    bytes: int
    modified_ns: int
    sha256: str | None


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Part:
    """Which part of a corpus the pair is: `number` (from 1) of `of`, cut by the plan with this fingerprint.

    A file may be cut among parts. Of the pieces of one that an earlier part has begun, `begun` are digests of those in
    this part; of one that this part has begun, `rest` are digests of those in later parts.
    """

    number: int
    of: int
    plan: str
    begun: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Manifest:
    """What a pair was made of; `counts` says what was left out or cannot be restored, by kind."""

    tokenizer_fingerprint: str
    vocabulary_size: int
    eod_id: int | None
    largest_id: int | None
    token_type: str
    documents: int
    tokens: int
    text_bytes: int
    bin_bytes: int
    bin_sha256: str
    idx_sha256: str
    sources: tuple[SourceFile, ...]
    options: Options
    counts: dict[str, int] = field(default_factory=dict)
    part: Part | None = None
    lists: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the lists beside the pair, by what follows the prefix in their names."""
    tool_version: str
    version: int = MANIFEST_VERSION

    def to_json(self) -> bytes:
        """The file's bytes; the last entry is the SHA-256 of the others."""
        fields = json.loads(TypeAdapter(Manifest).dump_json(self))
        return (json.dumps(fields | {CHECKSUM: _checksum(fields)}, indent=2, ensure_ascii=False) + "\n").encode()


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def read_manifest(prefix: str | Path) -> Manifest | None:
    """The manifest of the pair `prefix`; None where it has none, as pairs of other tools.

    Raises Refused for a file that is no manifest of this version.
    """
    path = sidecar_path(prefix)
    if not path.is_file():
        return None
    data = path.read_bytes()
    remedy = "make the pair again, or remove this file to use the pair as one of unknown origin"
    try:
        fields = json.loads(data)
        version = fields["version"]
    except (ValueError, TypeError, KeyError):
        raise refuse(str(path), "is no manifest of a token pair", remedy) from None
    if version not in KNOWN_VERSIONS:
        known = " and ".join(map(str, KNOWN_VERSIONS))
        raise refuse(str(path), f"has manifest version {version}, known are {known}", remedy)
    if version > 1 and fields.pop(CHECKSUM, None) != _checksum(fields):
        raise refuse(str(path), "has a checksum that is not that of its contents: it was changed or damaged", remedy)
    try:
        return TypeAdapter(Manifest).validate_python(fields, strict=False)
    except ValidationError as error:
        names = ", ".join(".".join(map(str, problem["loc"])) for problem in error.errors())
        raise refuse(str(path), f"is no manifest of a token pair; see {names}", remedy) from None


def check_pair(manifest: Manifest, reader: IndexedReader) -> None:
    """Refuse a manifest that describes another pair."""
    described = (manifest.documents, manifest.tokens, manifest.token_type)
    found = (reader.num_documents, reader.num_tokens, reader.type.name)
    if described != found:
        raise refuse(
            str(sidecar_path(reader.prefix)),
            f"describes {described[0]} documents with {described[1]} tokens of {described[2]}, "
            f"the pair holds {found[0]} with {found[1]} of {found[2]}",
            "copy the three files from one place, or make the pair again",
        )


def open_pair(prefix: str | Path) -> tuple[IndexedReader, Manifest | None]:
    """The pair `prefix` and its manifest, if it has one. Raises Refused where either is damaged, or they differ."""
    reader, manifest = IndexedReader(prefix), read_manifest(prefix)
    if manifest is not None:
        check_pair(manifest, reader)
    return reader, manifest


def lists_of(manifest: Manifest, prefix: str | Path) -> list[tuple[Path, str]]:
    """The lists that lie beside the pair, and the SHA-256 that each must have."""
    return [(Path(f"{prefix}{ending}"), digest) for ending, digest in manifest.lists.items()]
