"""What a checkpoint says of itself, as plain JSON: readable without torch, complete before anything is loaded."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnres_train.errors import refuse

FORMAT = 1
FILE_NAME = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """Contents of `manifest.json`; its presence marks a checkpoint whole."""

    step: int
    samples: int
    tokens: int
    skipped_steps: int
    optimizer_updates: int
    created: str
    grid: dict[str, int]
    layers_per_stage: list[int]
    versions: dict[str, str]
    tensors: dict[str, dict[str, Any]]
    """Logical name -> {"shape": [...], "dtype": "float32"}; every tensor has a weight and two moments."""
    files: dict[str, int]
    """Relative name -> bytes, of every file but the manifest itself."""
    fingerprints: dict[str, str]
    """Of the tokenizer and the corpora the run was trained with."""
    settings: dict[str, Any]
    """The configuration of the run, by dotted key."""
    format: int = FORMAT


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write and flush to disk; the last file of a checkpoint."""
    with open(folder / FILE_NAME, "w", encoding="utf-8") as file:
        json.dump(asdict(manifest), file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> Manifest:
    """Raises Refused for a folder that is no whole checkpoint of this format, naming what is wrong with it."""
    path = folder / FILE_NAME
    if not path.is_file():
        raise refuse(
            str(folder.absolute()),
            f"is no checkpoint: it has no {FILE_NAME}",
            "give the folder of one checkpoint, such as RUN/checkpoints/step-00000100",
        )
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields["format"] != FORMAT:
            raise refuse(str(path), f"has format {fields['format']}, this version reads {FORMAT}", "use its version")
        manifest = Manifest(**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise refuse(str(path), f"cannot be read: {error}", "use an older checkpoint of the run") from error
    for name, size in manifest.files.items():
        found = (folder / name).stat().st_size if (folder / name).is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} bytes"
            raise refuse(str(folder / name), f"{state}; the manifest says {size}", "use an older checkpoint of the run")
    return manifest
