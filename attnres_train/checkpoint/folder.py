"""Names and order of the checkpoints in a run folder, and which one to resume from. No torch here."""

from __future__ import annotations

import difflib
import re
import shutil
from pathlib import Path

from attnres_train.checkpoint.manifest import FILE_NAME
from attnres_train.errors import refuse

_PUBLISHED = re.compile(r"step-(\d{8,})")
_PARTIAL = ".partial"
RESUME_WORDS = ("auto", "must", "never")


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


def choose_checkpoint(resume: str, run_folder: Path) -> Path | None:
    """The checkpoint that `checkpoint.resume` asks for; None starts at step 0.

    Raises Refused where the wish cannot be met.
    """
    checkpoints = checkpoints_folder(run_folder)
    published = published_steps(checkpoints)
    newest = published[max(published)] if published else None
    if resume == "auto":
        return newest
    if resume == "never":
        if newest is not None:
            raise refuse(
                "checkpoint.resume",
                f"is 'never', but {newest.absolute()} exists",
                "choose another training.run_folder, or resume = 'auto'",
            )
        return None
    if resume == "must":
        if newest is None:
            raise refuse(
                "checkpoint.resume",
                f"is 'must', but there is no checkpoint in {checkpoints.absolute()}",
                "check training.run_folder, or use resume = 'auto' to start at step 0 where none is",
            )
        return newest
    path = Path(resume).absolute()
    if not path.is_dir():
        word = difflib.get_close_matches(resume, RESUME_WORDS, n=1)
        remedy = f'did you mean "{word[0]}"?' if word else "correct the path, or write auto, must or never"
        raise refuse("checkpoint.resume", f"there is no folder {path}", remedy)
    if not (path / FILE_NAME).is_file():
        remedy = "name the folder of one checkpoint, such as RUN/checkpoints/step-00000100"
        raise refuse("checkpoint.resume", f"{path} is no checkpoint: it has no {FILE_NAME}", remedy)
    return path
