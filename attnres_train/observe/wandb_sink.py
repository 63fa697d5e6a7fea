"""Curves at Weights & Biases, for those who want them there too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class WandbSink:
    """One wandb run a process, in the group of the run folder's name: a resumed run cannot take steps back there, so
    each process has curves of its own that begin where it began."""

    def __init__(self, project: str, run_folder: Path, settings: Mapping[str, object]):
        import wandb

        self._run = wandb.init(
            project=project, group=run_folder.name, dir=str(run_folder), config=dict(settings), resume="never"
        )
        self._image = wandb.Image

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self._run.log(dict(values), step=step)

    def picture(self, step: int, tag: str, png: bytes) -> None:
        from io import BytesIO

        from PIL import Image

        self._run.log({tag: self._image(Image.open(BytesIO(png)))}, step=step)

    def close(self) -> None:
        self._run.finish()
