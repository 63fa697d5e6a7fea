"""`attnres verify`: whether every byte of a checkpoint is the one that was written. Loads nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnres_train.checkpoint.folder import checkpoints_folder, is_named, named_steps, readable
from attnres_train.checkpoint.manifest import FILE_NAME, read_manifest
from attnres_train.checkpoint.verify import damages, strangers
from attnres_train.cli.command import JSON, Answer, Command, option
from attnres_train.errors import ExitCode, Problem, Refused, problems_as_json, refuse
from attnres_train.paths import path_argument
from attnres_train.words import counted

_GIB = 2**30


def answer(options: argparse.Namespace, _overrides: Sequence[str]) -> Answer:
    """The verdict on every checkpoint: sound ones in words, damaged ones as problems."""
    found = verify(options.path)
    problems = [
        Problem(entry["path"], text, "use another checkpoint of the run")
        for entry in found
        for text in entry["problems"]
    ]
    lines = []
    for entry in found:
        if not entry["problems"]:
            size = f"{counted(entry['files'], 'file')}, {entry['bytes'] / _GIB:.3g} GiB"
            lines.append(f"{entry['path']}: whole ({size})")
            lines += [f"  not part of it: {name}" for name in entry["strangers"]]
    code = ExitCode.REFUSED if problems else ExitCode.DONE
    as_json = {"checkpoints": found, "problems": problems_as_json(problems)}
    return Answer(as_json, "\n".join(lines), code, problems)


def verify(path: Path) -> list[dict[str, Any]]:
    """The verdict on the checkpoint at `path`, or on each of the run there, oldest first.

    Raises Refused if `path` is neither.
    """
    absolute = path.absolute()
    named = list(named_steps(checkpoints_folder(absolute)).values())
    with readable(path):
        if (absolute / FILE_NAME).exists() or (absolute.is_dir() and is_named(absolute)):
            named = [absolute]
    if not named:
        message = f"{absolute} is neither a checkpoint nor a run that has one"
        raise refuse(str(path), message, "give RUN, or RUN/checkpoints/step-XXXXXXXX")
    return [_verdict(folder) for folder in named]


def _verdict(folder: Path) -> dict[str, Any]:
    try:
        manifest = read_manifest(folder)
    except Refused as refusal:
        problems = [problem.message for problem in refusal.problems]
        return {"path": str(folder), "problems": problems, "files": 0, "bytes": 0, "strangers": []}
    return {
        "path": str(folder),
        "problems": damages(folder, manifest),
        "files": len(manifest.files),
        "bytes": manifest.bytes,
        "strangers": strangers(folder, manifest),
    }


COMMAND = Command(
    "verify",
    "read every file of a checkpoint, or of each one of a run, against its checksum",
    (option("path", metavar="RUN|CHECKPOINT", type=path_argument), JSON),
    answer,
)
