"""A folder that is there whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnres_train.durable import flush_file, flush_folder
from attnres_train.errors import refuse


def refuse_taken(folder: Path) -> None:
    """Raises Refused where `folder` exists, or has no folder to be made in."""
    if os.path.lexists(folder):
        raise refuse(str(folder), "exists already", "name a folder that does not")
    if not folder.absolute().parent.is_dir():
        raise refuse(str(folder), f"there is no folder {folder.absolute().parent}", "make it, or name another")


@contextmanager
def published(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder` to write into, which gets its name when the block ends, by then on disk. Nothing
    is left of a block that raises.

    Raises OSError, and Refused where another has made `folder` meanwhile.
    """
    partial = folder.absolute().with_name(f".{folder.name}.{os.getpid()}.partial")
    partial.mkdir()
    try:
        yield partial
        for path in partial.iterdir():
            flush_file(path)
        flush_folder(partial)
        # An empty folder would be replaced by a rename, so it is looked at again.
        if os.path.lexists(folder):
            raise refuse(str(folder), "was made by another while this was written", "name another folder")
        partial.rename(folder)
        flush_folder(folder.absolute().parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
