"""Names and order of the checkpoints in a run folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from attnres_train.checkpoint.manifest import FILE_NAME

_PUBLISHED = re.compile(r"step-(\d{8,})")
_PARTIAL = ".partial"


def checkpoints_folder(run_folder: Path) -> Path:
    return run_folder / "checkpoints"


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def partial_folder(checkpoints: Path, step: int) -> Path:
    """Where a checkpoint is written before it is published; a sibling, so that the rename is one operation."""
    return checkpoints / f".{checkpoint_name(step)}{_PARTIAL}"


def published_steps(checkpoints: Path) -> dict[int, Path]:
    """Published checkpoints by step, oldest first."""
    if not checkpoints.is_dir():
        return {}
    found = {}
    for path in checkpoints.iterdir():
        match = _PUBLISHED.fullmatch(path.name)
        if match and (path / FILE_NAME).is_file():
            found[int(match.group(1))] = path
    return dict(sorted(found.items()))


def remove_leftovers(checkpoints: Path) -> None:
    """Remove what an interrupted save left behind."""
    for path in checkpoints.glob(f".*{_PARTIAL}"):
        shutil.rmtree(path)


def keep_newest(checkpoints: Path, keep: int | None) -> None:
    """Delete all but the `keep` newest; the manifest goes first, so that a half-deleted one is never whole."""
    published = published_steps(checkpoints)
    for step in list(published)[: max(0, len(published) - keep) if keep is not None else 0]:
        (published[step] / FILE_NAME).unlink()
        shutil.rmtree(published[step])
