"""Names and order of the checkpoints in a run folder, and which one to resume from. No torch here."""

from __future__ import annotations

import difflib
import re
import shutil
from pathlib import Path

from attnres_train.checkpoint.manifest import FILE_NAME, read_manifest
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


def replace_published(partial: Path, published: Path) -> None:
    """Publish `partial` by one rename. Where the same step is published already, that one is set aside first."""
    if published.exists():
        unpublish(published)
    partial.rename(published)


def unpublish(published: Path) -> None:
    """Delete a checkpoint such that it is never half there: it loses its name first."""
    doomed = published.with_name(f".{published.name}.deleted{_PARTIAL}")
    published.rename(doomed)
    shutil.rmtree(doomed)


def keep_newest(checkpoints: Path, keep: int | None) -> None:
    """Delete all but the `keep` newest; None keeps all."""
    published = published_steps(checkpoints)
    for step in list(published)[: max(0, len(published) - keep) if keep is not None else 0]:
        unpublish(published[step])


def choose_checkpoint(resume: str, run_folder: Path) -> Path | None:
    """The checkpoint that `checkpoint.resume` asks for; None starts at step 0.

    Raises Refused where the wish cannot be met.
    """
    checkpoints = checkpoints_folder(run_folder).absolute()
    published = published_steps(checkpoints)
    newest = published[max(published)] if published else None
    if resume == "auto":
        return newest
    if resume == "never":
        if newest is not None:
            remedy = 'choose another training.run_folder, or write "auto" to go on'
            raise refuse("checkpoint.resume", f'is "never", but {newest} exists', remedy)
        return None
    if resume == "must":
        if newest is None:
            remedy = 'check training.run_folder, or write "auto" to start at step 0 where there is none'
            raise refuse("checkpoint.resume", f'is "must", but there is no checkpoint in {checkpoints}', remedy)
        return newest
    return _stated_checkpoint(resume, newest)


def _stated_checkpoint(resume: str, newest: Path | None) -> Path:
    """The checkpoint at the path `resume`, for a run whose own newest one is `newest`."""
    path = Path(resume).absolute()
    if not path.is_dir():
        word = difflib.get_close_matches(resume, RESUME_WORDS, n=1)
        remedy = f'did you mean "{word[0]}"?' if word else "correct the path, or write auto, must or never"
        raise refuse("checkpoint.resume", f"there is no folder {path}", remedy)
    if not (path / FILE_NAME).is_file():
        remedy = "name the folder of one checkpoint, such as RUN/checkpoints/step-00000100"
        raise refuse("checkpoint.resume", f"{path} is no checkpoint: it has no {FILE_NAME}", remedy)
    step = read_manifest(path).step
    if newest is not None and read_manifest(newest).step > step:
        # Going on from here would be undone by the next automatic resume, or undo what is newer.
        what = f"names step {step}, but the run folder has {newest}"
        raise refuse(
            "checkpoint.resume", what, 'write "auto" to go on from there, or choose another training.run_folder'
        )
    return path
