"""`attnres verify`: whether every byte of a checkpoint is the one that was written. Loads nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnres_train.checkpoint.folder import checkpoints_folder, is_named, named_steps, readable
from attnres_train.checkpoint.manifest import FILE_NAME, read_manifest
from attnres_train.checkpoint.verify import damages, strangers
from attnres_train.cli.command import Answer, Command
from attnres_train.errors import Problem, Refused, problems_as_json, refuse
from attnres_train.paths import path_argument
from attnres_train.words import counted

_GIB = 2**30


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


def verify_text(found: list[dict[str, Any]]) -> str:
    """Sound ones in words; damaged ones are a refusal."""
    lines = []
    for entry in found:
        size = f"{counted(entry['files'], 'file')}, {entry['bytes'] / _GIB:.3g} GiB"
        lines.append(f"{entry['path']}: whole ({size})")
        lines += [f"  not part of it: {name}" for name in entry["strangers"]]
    return "\n".join(lines)


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


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN|CHECKPOINT", type=path_argument)


def _answer(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    found, remedy = verify(options.path), "use another checkpoint of the run"
    problems = [Problem(entry["path"], text, remedy) for entry in found for text in entry["problems"]]
    whole = verify_text([entry for entry in found if not entry["problems"]])
    return Answer({"checkpoints": found, "problems": problems_as_json(problems)}, whole, problems=problems)


COMMAND = Command(
    name="verify",
    help="read every file of a checkpoint, or of each one of a run, against its checksum",
    answer=_answer,
    options=_options,
)
