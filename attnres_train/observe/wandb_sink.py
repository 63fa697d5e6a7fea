"""Curves at Weights & Biases, for those who want them there too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnres_train.observe.sinks import Sink


class WandbSink(Sink):
    """One wandb run a process, in the group of the run folder's name: a resumed run cannot take steps back there, so
    each process has curves of its own that begin where it began.

    Whatever the library raises comes out as OSError: a network that is gone is to training what a full disk is.
    """

    def __init__(self, project: str, run_folder: Path, settings: Mapping[str, object]):
        with _as_os_errors():
            import wandb  # installed by those who use it

            self._run = wandb.init(
                project=project, group=run_folder.name, dir=str(run_folder), config=dict(settings), resume="never"
            )
            self._image = wandb.Image

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        with _as_os_errors():
            self._run.log(dict(values), step=step)

    def picture(self, step: int, tag: str, png: bytes) -> None:
        from io import BytesIO

        from PIL import Image

        with _as_os_errors():
            self._run.log({tag: self._image(Image.open(BytesIO(png)))}, step=step)

    def close(self) -> None:
        with _as_os_errors():
            self._run.finish()


@contextmanager
def _as_os_errors() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # the library's own are many, and its transports' more
        raise OSError(f"{type(error).__name__}: {error}") from error
