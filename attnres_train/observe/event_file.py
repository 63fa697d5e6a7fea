"""TensorBoard's event files, written at once and by one process.

The library's own writer hands events to a thread; when its disk is full the thread dies with a traceback, and a later
call raises. Here a record is on its way to the disk, or an error, when `write` returns; and all values of a step are
one event. Records and their checksums are the library's (`tensorboard.summary.writer.record_writer`).
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Mapping
from errno import ENOSPC
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnres_train.observe.sinks import write_whole
from attnres_train.observe.tags import describe

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import SummaryMetadata

LEAST_FREE_BYTES = 1 << 20


class EventFile:
    """The curves and pictures of a run in `folder`, from the step after `step` on.

    Readers drop what an earlier run wrote for later steps. A file that could not be written to the end is left as it
    is, and the next record begins another one.
    """

    def __init__(self, folder: Path, step: int):
        self._folder = folder
        self._file: RawIOBase | None = None
        self._opened = 0
        self._described: set[str] = set()
        self._open(step + 1)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        # The positions (tokens, samples) have no group in their tag: they are no curves.
        curves = {tag: value for tag, value in values.items() if "/" in tag}
        if curves:
            of_step = [
                Summary.Value(tag=tag, simple_value=value, metadata=self._words(tag, "scalars"))
                for tag, value in curves.items()
            ]
            self._add(step, summary=Summary(value=of_step))
            self._described |= curves.keys()

    def picture(self, step: int, tag: str, png: bytes) -> None:
        """A picture for the image tab."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))  # of PNG's IHDR
        image = Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=png)
        value = Summary.Value(tag=tag, image=image, metadata=self._words(tag, "images"))
        self._add(step, summary=Summary(value=[value]))
        self._described.add(tag)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _words(self, tag: str, plugin: str) -> SummaryMetadata | None:
        """What the tag holds, to go with its first value: readers take it from there."""
        from tensorboard.compat.proto import summary_pb2 as protocol

        if tag in self._described:
            return None
        kinds = {"scalars": protocol.DATA_CLASS_SCALAR, "images": protocol.DATA_CLASS_BLOB_SEQUENCE}
        owner = protocol.SummaryMetadata.PluginData(plugin_name=plugin)
        # Without the class of its data, TensorBoard's fast server would drop the words.
        return protocol.SummaryMetadata(plugin_data=owner, summary_description=describe(tag), data_class=kinds[plugin])

    def _open(self, first_step: int) -> RawIOBase:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self._folder).free < LEAST_FREE_BYTES:
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{self._opened}"
        self._file = file = open(self._folder / name, "ab", buffering=0)  # noqa: SIM115 - until it is closed
        self._opened += 1
        self._add(0, file_version="brain.Event:2")
        self._add(first_step, session_log=SessionLog(status=SessionLog.START))
        return file

    def _add(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        file = self._file or self._open(step)
        event = Event(wall_time=time.time(), step=step, **content)
        try:
            RecordWriter(_Whole(file)).write(event.SerializeToString())
        except OSError:
            file.close()
            self._file = None
            raise


class _Whole:
    """A raw file as the library's writer wants it."""

    def __init__(self, file: RawIOBase):
        self._file = file

    def write(self, data: bytes) -> None:
        write_whole(self._file, data)
