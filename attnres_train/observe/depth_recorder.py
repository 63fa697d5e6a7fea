"""What rank 0 keeps of each look at the depth: a line of `depth.jsonl`, curves, the map as a picture, alarms."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from attnres_train.observe.console import CONSOLE
from attnres_train.observe.depth_alarms import LOOKS_REMEMBERED, DepthAlarms
from attnres_train.observe.depth_look import DepthLook
from attnres_train.observe.depth_map import draw_map, png
from attnres_train.observe.record_lines import last_lines
from attnres_train.observe.sinks import Guarded, Sink, guarded_lines, record_up_to

log = logging.getLogger(CONSOLE)
MAP_TAG = "depth/weights"


class DepthRecorder:
    """`show` gets the picture of a step as PNG, under its tag; pictures are drawn beside training."""

    def __init__(self, run_folder: Path, step: int, show: Callable[[int, str, bytes], None]):
        self._lines = guarded_lines(run_folder / "depth.jsonl", step)
        self._alarms = _alarms_so_far(run_folder / "depth.jsonl", step)
        self._files = Guarded(lambda: PictureFolder(run_folder / "depth", step), "depth/")
        self._show = show
        self._drawing = ThreadPoolExecutor(1, thread_name_prefix="depth map")
        self._last: Future[None] | None = None
        self._undrawn = 0

    def record(self, step: int, look: DepthLook) -> None:
        self._lines.write(step, look.record())
        for words in self._alarms.new(look):
            log.warning(f"step {step}  depth: {words}")
        self.wait()
        self._last = self._drawing.submit(self._draw, step, look)

    def wait(self) -> None:
        """For the picture that is being drawn. One that cannot be drawn is told with its traceback, the first time."""
        if self._last is None:
            return
        error, self._last = self._last.exception(), None
        if error is not None and not self._undrawn:
            log.warning("a map of the depth could not be drawn; training goes on without", exc_info=error)
        self._undrawn += error is not None

    def close(self) -> None:
        self.wait()
        self._drawing.shutdown()
        self._lines.close()
        self._files.close()

    def _draw(self, step: int, look: DepthLook) -> None:
        figure = draw_map(look, f"where readers look, step {step}")
        if figure is None:
            return
        picture = png(figure)
        self._show(step, MAP_TAG, picture)
        self._files.picture(step, MAP_TAG, picture)


def _alarms_so_far(path: Path, step: int) -> DepthAlarms:
    """With the looks before a resume in memory: what they told is not told again, and growth is seen over it."""
    alarms = DepthAlarms()
    try:
        lines = last_lines(path, LOOKS_REMEMBERED)
    except OSError:
        return alarms
    for line in lines:
        if record := record_up_to(line, step):
            with suppress(ValueError):  # a line that was damaged in part
                alarms.new(DepthLook.of_record(record))
    return alarms


class PictureFolder(Sink):
    """Pictures as files, one a step. Opening it at `step` drops those of later steps: a resumed run draws them anew."""

    def __init__(self, folder: Path, step: int):
        self._folder = folder
        for picture in folder.glob("step-*.png"):
            if picture.name > _picture_name(step):
                picture.unlink()

    def picture(self, step: int, tag: str, png: bytes) -> None:
        self._folder.mkdir(exist_ok=True)
        path = self._folder / _picture_name(step)
        try:
            path.write_bytes(png)
        except OSError:  # a part of it shows nothing, and takes what space there is
            with suppress(OSError):
                path.unlink()
            raise


def _picture_name(step: int) -> str:
    return f"step-{step:08d}.png"
