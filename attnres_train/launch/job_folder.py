"""The folder in which the ranks of one launch leave their records: made here, and gone with the launch.

A launch that was SIGKILLed leaves its folder behind; the next one on the machine clears it away.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attnres_train.locks import NoLocks, is_locked, lock

PREFIX = "attnres-job-"
_LOCK = ".launch"
_FORGOTTEN_SECONDS = 600.0
"""Ranks that outlived their launch may write for some seconds more."""


@contextmanager
def job_folder() -> Iterator[Path]:
    """A new folder, locked by this process for as long as it lives."""
    clear_forgotten(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    with open(folder / _LOCK, "w", encoding="utf-8") as file:
        with suppress(NoLocks):  # then nobody else can find it unlocked and clear it away, either
            lock(file)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def clear_forgotten(place: Path) -> None:
    """Remove folders in `place` whose launch is gone. Those of other users, and odd ones, stay."""
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _FORGOTTEN_SECONDS and not is_locked(folder / _LOCK):
                shutil.rmtree(folder)
