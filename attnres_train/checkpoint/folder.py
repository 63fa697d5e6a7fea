"""Names and order of the checkpoints in a run folder, and which ones a resume may use. No torch here."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import EACCES, EPERM
from itertools import count
from pathlib import Path
from typing import Literal

from attnres_train.checkpoint.manifest import FILE_NAME, Manifest, read_manifest, step_of_name
from attnres_train.checkpoint.origin import Origin, digest_of
from attnres_train.checkpoint.verify import damages
from attnres_train.errors import Problem, Refused, refuse

_PARTIAL = ".partial"
_LATEST = "latest"
Load = Literal["all", "weights"]
RESUME_WORDS = ("auto", "must", "never")
_MOST_NAMED = 3
_REMEDY = "use another checkpoint of the run"


def checkpoints_folder(run_folder: Path) -> Path:
    return run_folder / "checkpoints"


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def partial_folder(checkpoints: Path, step: int) -> Path:
    """Where a checkpoint is written before it is published; a sibling, so that the rename is one operation."""
    return checkpoints / f".{checkpoint_name(step)}{_PARTIAL}"


def named_steps(checkpoints: Path) -> dict[int, Path]:
    """Folders that have a checkpoint's name, whole or not, by step, oldest first.

    Raises Refused where they cannot be listed.
    """
    with readable(checkpoints):
        if not checkpoints.is_dir():
            return {}
        steps = ((step_of_name(path), path) for path in checkpoints.iterdir() if path.is_dir())
        return dict(sorted((step, path) for step, path in steps if step is not None))


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Have an OSError of the block refused in words: it looks at `path` or below it."""
    try:
        yield
    except OSError as error:
        message = f"{error.filename or path} cannot be read: {error.strerror}"
        forbidden = error.errno in (EACCES, EPERM)
        remedy = "give this user the right to read it, or name another" if forbidden else "correct the path"
        raise refuse(str(path), message, remedy) from error


def is_named(folder: Path) -> bool:
    """Whether a folder has a checkpoint's name."""
    return step_of_name(folder) is not None


def remove_leftovers(checkpoints: Path) -> list[str]:
    """Remove what interrupted saves and deletions left behind; what cannot be removed, and why."""
    return [why for path in sorted(checkpoints.glob(f".step-*{_PARTIAL}")) if (why := _remove(path)) is not None]


def make_partial(partial: Path) -> None:
    """An empty folder `partial`. What has the name already, because it cannot be removed, is set aside."""
    if partial.exists():
        partial.rename(_doomed_name(partial))
    partial.mkdir()


def _remove(path: Path) -> str | None:
    """Remove what is at `path` as far as it goes, of a link only itself; what stays and why, None if nothing does."""
    try:
        if path.is_symlink() or not path.is_dir():
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


def candidates(resume: str, run_folder: Path, load: Load = "all") -> list[Path]:
    """What `checkpoint.resume` allows to continue from, the best first; none starts at step 0.

    With `load` = "weights" the last one, which `resume` names, is begun from, and those before it are gone on from.

    Raises Refused where the wish cannot be met.
    """
    checkpoints = checkpoints_folder(run_folder).absolute()
    by_step = named_steps(checkpoints)
    named = list(by_step.values())[::-1]
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
    with readable(Path(resume)):
        if load == "weights":
            return _from_weights(Path(resume).absolute(), named)
        return _from_stated(Path(resume).absolute(), by_step)


def is_stated(resume: str) -> bool:
    """Whether `checkpoint.resume` names one checkpoint."""
    return resume not in RESUME_WORDS


def _from_stated(path: Path, named: Mapping[int, Path]) -> list[Path]:
    """For a run whose own checkpoints are `named`: those after the one at `path`, newest first, and then that one.

    The run began from there and was interrupted since: the same command goes on. An older one of its own is refused.
    """
    lacking: Refused | None = None
    origin: Origin | None = None
    try:
        manifest = _stated_manifest(path)
        step: int | None = manifest.step
        origin = manifest.origin
    except Refused as refusal:
        step, lacking = step_of_name(path), refusal
    if origin is not None and origin.how == "merge":
        what = f"{path} is {origin}: weights alone, with no optimizer state to go on with"
        raise refuse("checkpoint.resume", what, 'write checkpoint.load = "weights" to begin at step 0 with them')
    newer = [other for own, other in named.items() if step is not None and own > step][::-1]
    went_on = next((other for other in newer if not problems_at_a_glance(other)), None)
    if path.parent.resolve() in {other.parent.resolve() for other in named.values()}:
        if lacking is not None:
            raise lacking
        if went_on is not None:
            # Going on from here would be undone by the next automatic resume, or undo what is newer.
            what = f"names step {step}, but the run folder has {went_on}"
            remedy = 'write "auto" to go on from there, or choose another training.run_folder'
            raise refuse("checkpoint.resume", what, remedy)
        return [path]
    if lacking is None:
        return [*newer, path]
    if went_on is None:
        raise lacking
    return newer  # the other run may have deleted the one that this run began from


def _from_weights(path: Path, named: Sequence[Path]) -> list[Path]:
    """For a run whose own checkpoints are `named`, the newest first: these, and then that at `path` whose weights it
    began with. Refused where they are of a run that did not begin so: nobody asked to have it go on or be lost."""
    if path.parent.resolve() in {other.parent.resolve() for other in named}:
        what = f"{path} is of this run, which step 0 would begin anew"
        raise refuse("checkpoint.load", f'"weights", but {what}', _OTHER_FOLDER)
    lacking: Refused | None = None
    try:
        _stated_manifest(path)
    except Refused as refusal:
        lacking = refusal
    went_on = next((other for other in named if not problems_at_a_glance(other)), None)
    if went_on is not None:
        origin = read_manifest(went_on).origin
        if origin is None or origin.how != "weights":
            what = f"{went_on} is there, of a run that did not begin with weights alone"
            raise refuse("checkpoint.load", f'"weights", but {what}', _OTHER_FOLDER)
        if lacking is None and origin.sources[0].digest != digest_of(path):
            what = f"names {path}, but {went_on} {origin}"
            raise refuse("checkpoint.resume", what, _OTHER_FOLDER)
    elif lacking is not None:
        raise lacking
    return [*named, path] if lacking is None else list(named)


_OTHER_FOLDER = 'choose another training.run_folder, or go on with that run: resume = "auto", load = "all"'


def _stated_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint at `path`, whose files have the right sizes. Raises Refused."""
    if not path.is_dir():
        word = difflib.get_close_matches(path.name, RESUME_WORDS, n=1)
        remedy = f'did you mean "{word[0]}"?' if word else "correct the path, or write auto, must or never"
        raise refuse("checkpoint.resume", f"there is no folder {path}", remedy)
    if not (path / FILE_NAME).is_file():
        remedy = _those_at(path) or "name the folder of one whole checkpoint, such as RUN/checkpoints/step-00000100"
        raise refuse("checkpoint.resume", f"{path} is no whole checkpoint: it has no {FILE_NAME}", remedy)
    manifest = read_manifest(path)
    wrong = damages(path, manifest, sizes_only=True)
    if wrong:
        raise Refused([Problem(str(path), text, _REMEDY) for text in wrong])
    return manifest


def _those_at(path: Path) -> str:
    """Which checkpoints a run, or its folder of them, at `path` has; nothing where it has none."""
    newest = list((named_steps(path) or named_steps(checkpoints_folder(path))).values())[::-1]
    if not newest:
        return ""
    older = f" or one of {len(newest) - _MOST_NAMED} older ones" if len(newest) > _MOST_NAMED else ""
    listed = ", ".join(folder.name for folder in newest[:_MOST_NAMED])
    return f"name one of those in {newest[0].parent}: {listed}{older}"


def problems_at_a_glance(folder: Path) -> list[str]:
    """What is wrong with a checkpoint as far as its manifest and the sizes of its files say."""
    try:
        return damages(folder, read_manifest(folder), sizes_only=True)
    except Refused as refusal:
        return [problem.message for problem in refusal.problems]
