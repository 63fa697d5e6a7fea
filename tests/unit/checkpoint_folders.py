"""Checkpoints made by hand, of files that hold no tensor, for the tests of names, manifests and checksums."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnres_train.checkpoint.checksum import FileRecord, record_of
from attnres_train.checkpoint.manifest import FILE_NAME, Manifest, SavedGrid, TensorRecord, write_manifest

CONTENTS: Mapping[str, bytes] = {"part": b"1234567", "other": b"abc"}


def manifest(step: int = 10, **changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "step": step,
        "samples": 8 * step,
        "tokens": 256 * step,
        "skipped_steps": 0,
        "skipped_in_a_row": 0,
        "optimizer_updates": step,
        "created": "2026-11-29T14:00:00+00:00",
        "grid": SavedGrid(tensor=1, pipeline=2, virtual=1, data=1, sequence=0),
        "layers_per_stage": [2, 2],
        "versions": {"torch": "2.13.0"},
        "tensors": {"a": TensorRecord((3, 4), "float32"), "b": TensorRecord((5,), "float32")},
        "files": {},
        "fingerprints": {"tokenizer": "abc", "train": "def"},
        "settings": {"optimizer.learning_rate": 6e-4},
    }
    return Manifest(**(fields | changes))


def checkpoint(folder: Path, step: int = 10, contents: Mapping[str, bytes] = CONTENTS) -> Path:
    """A whole checkpoint in `folder`."""
    folder.mkdir(parents=True)
    records: dict[str, FileRecord] = {}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        records[name] = record_of(folder / name)
    write_manifest(folder, manifest(step, files=records))
    return folder


def run_with(run: Path, *steps: int) -> Path:
    """Whole checkpoints of `steps` in the run folder `run`; returns the folder they are in."""
    for step in steps:
        checkpoint(run / "checkpoints" / f"step-{step:08d}", step)
    return run / "checkpoints"


def flip(path: Path, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(data)


def write_sealed(folder: Path, fields: object, *, text: bytes | None = None) -> None:
    """Write `fields`, or `text` in their place, as a manifest whose own checksum is right, whatever it says."""
    body = json.dumps(fields).encode() if text is None else text
    blank = b'{"crc32_of_manifest": "00000000", ' + body.lstrip(b" ").removeprefix(b"{")
    own = f"{zlib.crc32(blank):08x}".encode()
    (folder / FILE_NAME).write_bytes(blank.replace(b"00000000", own, 1))
