"""What a checkpoint says of itself, as plain JSON: readable without torch, complete before anything is loaded."""

from __future__ import annotations

import json
import os
import re
import zlib
from dataclasses import asdict, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from attnres_train.checkpoint.checksum import FileRecord, hexadecimal
from attnres_train.checkpoint.origin import MANIFEST_FILE as FILE_NAME
from attnres_train.checkpoint.origin import Origin, origin_of, plain_origin
from attnres_train.errors import refuse
from attnres_train.progress import LossSum

if TYPE_CHECKING:
    from attnres_train.parallel.grid import Grid

FORMAT = 2
_NAMED = re.compile(r"step-(\d{8,})")
_OWN_CHECKSUM = re.compile(rb'"crc32_of_manifest": "([0-9a-f]{8})"')
_ZEROS = b'"crc32_of_manifest": "00000000"'


class SavedGrid(NamedTuple):
    """Degrees of the run that saved; `sequence` is 0 or 1."""

    tensor: int
    pipeline: int
    virtual: int
    data: int
    sequence: int

    @classmethod
    def of(cls, grid: Grid) -> SavedGrid:
        """The degrees of a running grid."""
        parallel = grid.parallel
        return cls(parallel.tensor, parallel.pipeline, parallel.virtual, grid.data, int(parallel.sequence))


class TensorRecord(NamedTuple):
    """A logical tensor, of which there are a weight and two moments."""

    shape: tuple[int, ...]
    dtype: str
    decays: bool | None = None
    """Whether weight decay draws it to zero, as its module states; None in checkpoints from before this was kept."""


def _plain_names(files: dict[str, FileRecord]) -> dict[str, FileRecord]:
    for name, record in files.items():
        path = PurePosixPath(name)
        if not name.isprintable() or path.is_absolute() or ".." in path.parts or name != str(path):
            raise ValueError(f"{name!r} is no name of a file in the checkpoint")
        if record.bytes < 0:
            raise ValueError(f"{name} has {record.bytes} bytes")
    return files


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r} is no plain text")
    return text


Count = Annotated[int, Field(ge=0)]


@checked_dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Manifest:
    """Contents of `manifest.json`; its presence marks a checkpoint whole."""

    step: Count
    samples: Count
    tokens: Count
    skipped_steps: Count
    skipped_in_a_row: Count
    optimizer_updates: Count
    created: Annotated[str, AfterValidator(_printable)]
    grid: SavedGrid
    layers_per_stage: list[int]
    versions: dict[str, str]
    tensors: dict[str, TensorRecord]
    """By logical name."""
    files: Annotated[dict[str, FileRecord], AfterValidator(_plain_names)]
    """Relative name -> size and checksum, of every file but the manifest itself."""
    fingerprints: dict[str, str]
    """Of the tokenizer and the corpora the run was trained with."""
    settings: dict[str, Any]
    """The configuration of the run, by dotted key."""
    losses: dict[str, LossSum] = field(default_factory=dict)
    """Of the steps that no record has yet."""
    origin: Origin | None = None
    """Where the weights came from, if not from this run's first step."""
    format: int = FORMAT

    def draw_of_data(self, otherwise: int) -> int:
        """The draw by which the fingerprints looked into the corpora; `otherwise` where they did not."""
        marks = [mark for kind, mark in self.fingerprints.items() if kind.startswith("bytes ")]
        return int(marks[0].partition(":")[0]) if marks else otherwise

    @property
    def bytes(self) -> int:
        """Of all files but the manifest."""
        return sum(record.bytes for record in self.files.values())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write and flush to disk; the last file of a checkpoint."""
    fields = {"crc32_of_manifest": "00000000", **plain_fields(manifest)}
    text = json.dumps(fields, indent=1).encode()
    own = hexadecimal(zlib.crc32(text)).encode()
    with open(folder / FILE_NAME, "wb") as file:
        file.write(text.replace(_ZEROS, _ZEROS.replace(b"00000000", own), 1))
        file.flush()
        os.fsync(file.fileno())


def plain_fields(manifest: Manifest) -> dict[str, Any]:
    """The fields as they stand in the file."""
    fields = asdict(manifest)
    fields["grid"] = manifest.grid._asdict()
    fields["files"] = {name: record._asdict() for name, record in manifest.files.items()}
    fields["losses"] = {name: record._asdict() for name, record in manifest.losses.items()}
    fields["tensors"] = {name: record._asdict() for name, record in manifest.tensors.items()}
    fields["origin"] = plain_origin(manifest.origin)
    return fields


def step_of_name(folder: Path) -> int | None:
    """The step that the name of a checkpoint's folder says; None for any other name."""
    match = _NAMED.fullmatch(folder.name)
    return None if match is None else int(match.group(1))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint; looks at no other file (`verify.damages` does).

    Raises Refused for a folder that has none of this format, or a damaged one, naming what is wrong with it.
    """
    path = folder / FILE_NAME
    try:
        if not path.is_file():
            raise refuse(
                str(folder.absolute()),
                f"is no whole checkpoint: it has no {FILE_NAME}",
                "give the folder of one checkpoint, such as RUN/checkpoints/step-00000100",
            )
        fields = json.loads(_whole_text(path))
        if fields.get("format") != FORMAT:
            what = f"{FILE_NAME} has format {fields.get('format')}, this version reads {FORMAT}"
            raise refuse(str(path), what, "use the version that wrote it")
        fields.pop("crc32_of_manifest", None)
        fields["grid"] = SavedGrid(**fields["grid"])
        fields["files"] = {name: FileRecord(**record) for name, record in fields["files"].items()}
        fields["tensors"] = {
            name: TensorRecord(tuple(record.pop("shape")), **record) for name, record in fields["tensors"].items()
        }
        fields["losses"] = {
            name: LossSum(record.pop("loss"), record.pop("tokens"), **record)
            for name, record in fields.get("losses", {}).items()
        }
        fields["origin"] = origin_of(fields.get("origin"))
        manifest = Manifest(**fields)
        if step_of_name(folder) not in (None, manifest.step):
            raise ValueError(f"it is of step {manifest.step}, and the folder is named {folder.name}")
        return manifest
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise refuse(str(path), f"{FILE_NAME} cannot be read: {where}: {first['msg']}", _REMEDY) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise refuse(str(path), f"{FILE_NAME} cannot be read: {error}", _REMEDY) from error


_REMEDY = "use another checkpoint of the run"


def _whole_text(path: Path) -> bytes:
    """The bytes of a manifest. Raises ValueError if they are not those that were written."""
    text = path.read_bytes()
    found = _OWN_CHECKSUM.search(text)
    if found is None:
        raise ValueError("it has no checksum of its own: made by another version, or damaged")
    blank = text[: found.start()] + _ZEROS + text[found.end() :]
    if hexadecimal(zlib.crc32(blank)).encode() != found.group(1):
        raise ValueError("its checksum is not that of its contents: it is damaged")
    return text
