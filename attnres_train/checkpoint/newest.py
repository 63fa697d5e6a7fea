"""From what a user names, a checkpoint or a run, to the checkpoint that is meant."""

from __future__ import annotations

from pathlib import Path

from attnres_train.checkpoint.folder import checkpoints_folder, named_steps, problems_at_a_glance, readable
from attnres_train.checkpoint.manifest import FILE_NAME
from attnres_train.errors import refuse


def checkpoint_of(path: Path) -> Path:
    """The checkpoint at `path`, or the newest of the run there whose files have the right sizes. Raises Refused."""
    with readable(path):
        if (path / FILE_NAME).exists():
            return path
        named = list(named_steps(checkpoints_folder(path)).values())[::-1]
    if not named:
        what = f"{path.absolute()} is neither a checkpoint nor a run that has one"
        raise refuse(str(path), what, "give RUN, or RUN/checkpoints/step-XXXXXXXX")
    return next((folder for folder in named if not problems_at_a_glance(folder)), named[0])
