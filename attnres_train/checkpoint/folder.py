"""Names and order of the checkpoints in a run folder, and which ones a resume may use. No torch here."""

from __future__ import annotations

import difflib
import os
import re
import shutil
from itertools import count
from pathlib import Path

from attnres_train.checkpoint.manifest import FILE_NAME, read_manifest
from attnres_train.checkpoint.verify import damages
from attnres_train.errors import Problem, Refused, refuse

_NAMED = re.compile(r"step-(\d{8,})")
_PARTIAL = ".partial"
_LATEST = "latest"
RESUME_WORDS = ("auto", "must", "never")
_REMEDY = "use another checkpoint of the run"


def checkpoints_folder(run_folder: Path) -> Path:
    return run_folder / "checkpoints"


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def partial_folder(checkpoints: Path, step: int) -> Path:
    """Where a checkpoint is written before it is published; a sibling, so that the rename is one operation."""
    return checkpoints / f".{checkpoint_name(step)}{_PARTIAL}"


def named_steps(checkpoints: Path) -> dict[int, Path]:
    """Folders that have a checkpoint's name, whole or not, by step, oldest first."""
    if not checkpoints.is_dir():
        return {}
    matches = ((path, _NAMED.fullmatch(path.name)) for path in checkpoints.iterdir() if path.is_dir())
    return dict(sorted((int(match.group(1)), path) for path, match in matches if match))


def is_named(folder: Path) -> bool:
    """Whether a folder has a checkpoint's name."""
    return _NAMED.fullmatch(folder.name) is not None


def remove_leftovers(checkpoints: Path) -> list[str]:
    """Remove what interrupted saves and deletions left behind; what cannot be removed, and why."""
    return [why for path in sorted(checkpoints.glob(f".step-*{_PARTIAL}")) if (why := _remove(path)) is not None]


def make_partial(partial: Path) -> None:
    """An empty folder `partial`. What has the name already, because it cannot be removed, is set aside."""
    if partial.exists():
        partial.rename(_doomed_name(partial))
    partial.mkdir()


def _remove(path: Path) -> str | None:
    """Remove the folder at `path` as far as it goes, or the link to one; what stays and why, None if nothing does."""
    try:
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)  # the first obstacle ends nothing: the rest gives its space back
        if os.path.lexists(path):
            return _stays(path, error)
    return None


def _stays(path: Path, error: OSError) -> str:
    return f"{path} cannot be deleted and takes room: {error.strerror} ({error.filename})"


def _doomed_name(path: Path) -> Path:
    """A free name for what is to be deleted, which nothing takes for a checkpoint."""
    return _free_name(path, f".{path.name.removeprefix('.').removesuffix(_PARTIAL)}.deleted-{{}}{_PARTIAL}")


def _free_name(beside: Path, pattern: str) -> Path:
    return next(path for number in count(1) if not os.path.lexists(path := beside.with_name(pattern.format(number))))


def replace_published(partial: Path, published: Path) -> None:
    """Publish `partial` by one rename. What has the name already, damaged or older, is set aside and stays."""
    if published.exists():
        published.rename(_free_name(published, f"{published.name}.replaced-{{}}"))
    partial.rename(published)


def point_to_latest(published: Path) -> None:
    """Leave a hint for people and tools; nothing here reads it."""
    hint = published.with_name(_LATEST)
    new = hint.with_name(f".{_LATEST}.new")
    new.write_text(f"{published.name}\n", encoding="utf-8")
    new.rename(hint)


def unpublish(published: Path) -> str | None:
    """Delete a checkpoint such that it is never half there: it loses its name first. What stays and why, if it does."""
    doomed = _doomed_name(published)
    try:
        published.rename(doomed)
    except OSError as error:
        return _stays(published, error)
    return _remove(doomed)


def keep_newest(checkpoints: Path, keep: int | None, upto: int) -> list[str]:
    """Delete all but the `keep` newest whole ones up to step `upto`, which has just been verified; None keeps all.

    Returns what cannot be deleted, and why.

    Newer ones are of a run that went further, and damaged ones nobody asked to have deleted: they stay.
    """
    whole = [path for step, path in named_steps(checkpoints).items() if step <= upto and not problems_at_a_glance(path)]
    doomed = whole[: max(0, len(whole) - keep)] if keep is not None else []
    return [why for path in doomed if (why := unpublish(path)) is not None]


def candidates(resume: str, run_folder: Path) -> list[Path]:
    """What `checkpoint.resume` allows to continue from, the best first; none starts at step 0.

    Raises Refused where the wish cannot be met.
    """
    checkpoints = checkpoints_folder(run_folder).absolute()
    named = list(named_steps(checkpoints).values())[::-1]
    if resume == "auto":
        return named
    if resume == "never":
        if named:
            remedy = 'choose another training.run_folder, or write "auto" to go on'
            raise refuse("checkpoint.resume", f'is "never", but {named[0]} exists', remedy)
        return []
    if resume == "must":
        if not named:
            remedy = 'check training.run_folder, or write "auto" to start at step 0 where there is none'
            raise refuse("checkpoint.resume", f'is "must", but there is no checkpoint in {checkpoints}', remedy)
        return named
    return [_stated_checkpoint(resume, named)]


def is_stated(resume: str) -> bool:
    """Whether `checkpoint.resume` names one checkpoint."""
    return resume not in RESUME_WORDS


def _stated_checkpoint(resume: str, named: list[Path]) -> Path:
    """The checkpoint at the path `resume`, for a run whose own ones are `named`, newest first."""
    path = Path(resume).absolute()
    if not path.is_dir():
        word = difflib.get_close_matches(resume, RESUME_WORDS, n=1)
        remedy = f'did you mean "{word[0]}"?' if word else "correct the path, or write auto, must or never"
        raise refuse("checkpoint.resume", f"there is no folder {path}", remedy)
    if not (path / FILE_NAME).is_file():
        remedy = "name the folder of one whole checkpoint, such as RUN/checkpoints/step-00000100"
        raise refuse("checkpoint.resume", f"{path} is no whole checkpoint: it has no {FILE_NAME}", remedy)
    manifest = read_manifest(path)
    wrong = damages(path, manifest, sizes_only=True)
    if wrong:
        raise Refused([Problem(str(path), text, _REMEDY) for text in wrong])
    newer = next((other for other in named if not problems_at_a_glance(other)), None)
    if newer is not None and read_manifest(newer).step > manifest.step:
        # Going on from here would be undone by the next automatic resume, or undo what is newer.
        what = f"names step {manifest.step}, but the run folder has {newer}"
        raise refuse(
            "checkpoint.resume", what, 'write "auto" to go on from there, or choose another training.run_folder'
        )
    return path


def problems_at_a_glance(folder: Path) -> list[str]:
    """What is wrong with a checkpoint as far as its manifest and the sizes of its files say."""
    try:
        return damages(folder, read_manifest(folder), sizes_only=True)
    except Refused as refusal:
        return [problem.message for problem in refusal.problems]
