"""TensorBoard's event files, written at once and by one process.

The library's own writer hands events to a thread; when its disk is full the thread dies with a traceback, and a later
call raises. Here a record is on its way to the disk, or an error, when `write` returns; and all values of a step are
one event. Records and their checksums are the library's (`tensorboard.summary.writer.record_writer`).
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnres_train.observe.kept_file import Gone, KeptFile
from attnres_train.observe.sinks import Sink, refuse_full_disk
from attnres_train.observe.tags import DEPTH_DESCRIPTIONS, describe_tag, in_tensorboard

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import SummaryMetadata

_SECOND = re.compile(r"events\.out\.tfevents\.(\d+)\.")
_BLOCK_BYTES, _MOST_BLOCKS = 1 << 20, 64
_OF_DEPTH = re.compile(rf"(z-)?depth/(?:{'|'.join(DEPTH_DESCRIPTIONS)})".encode())


class EventFile(Sink):
    """The curves and pictures of a run in `folder`, from the step after `step` on.

    Readers drop what an earlier run wrote for later steps. A file that could not be written to the end is left as it
    is, and the next record begins another one, which takes nothing back: a record may come later than that of a later
    step.
    """

    def __init__(self, folder: Path, step: int):
        self._folder = folder
        self._file: KeptFile | None = None
        self._first_step: int | None = step + 1
        self._described: set[str] = set()
        self._name: Callable[[str], str] = str if step and names_depth_plainly(folder) else in_tensorboard
        self._open()

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        # The positions (tokens, samples) have no group in their tag: they are no curves.
        self._add(step, "scalars", {tag: {"simple_value": value} for tag, value in values.items() if "/" in tag})

    def picture(self, step: int, tag: str, png: bytes) -> None:
        """A picture for the image tab."""
        width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))  # of PNG's IHDR
        image = {"height": height, "width": width, "colorspace": 4, "encoded_image_string": png}
        self._add(step, "images", {tag: {"image": image}})

    def text(self, step: int, tag: str, words: str) -> None:
        """Words for the text tab."""
        from tensorboard.util.tensor_util import make_tensor_proto

        self._add(step, "text", {tag: {"tensor": make_tensor_proto([words])}})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _add(self, step: int, plugin: str, contents: Mapping[str, Mapping[str, Any]]) -> None:
        """One event with the contents of each tag."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        if not contents:
            return
        of_step = [
            Summary.Value(tag=self._name(tag), metadata=self._words(tag, plugin), **content)
            for tag, content in contents.items()
        ]
        self._append(self._file or self._open(), step, summary=Summary(value=of_step))
        self._described |= contents.keys()

    def _words(self, tag: str, plugin: str) -> SummaryMetadata | None:
        """What the tag holds, to go with its first value: readers take it from there."""
        from tensorboard.compat.proto import summary_pb2 as protocol

        if tag in self._described:
            return None
        kinds = {"scalars": "SCALAR", "images": "BLOB_SEQUENCE", "text": "TENSOR"}
        owner, words = protocol.SummaryMetadata.PluginData(plugin_name=plugin), describe_tag(tag)
        # Without the class of its data, TensorBoard's fast server would drop the words.
        kind = getattr(protocol, f"DATA_CLASS_{kinds[plugin]}")
        return protocol.SummaryMetadata(plugin_data=owner, summary_description=words, data_class=kind)

    def _open(self) -> KeptFile:
        """A new file: the first that succeeds says where this run begins, and readers drop all from there on."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._folder.mkdir(parents=True, exist_ok=True)
        refuse_full_disk(self._folder)
        path, self._file = self._new_file()
        try:
            self._append(self._file, 0, file_version="brain.Event:2")
            if self._first_step is not None:
                self._append(self._file, self._first_step, session_log=SessionLog(status=SessionLog.START))
                self._first_step = None
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise
        return self._file

    def _new_file(self) -> tuple[Path, KeptFile]:
        """Readers take files by name, as if by time: that of a machine whose clock is behind must not come first."""
        before = [int(found[1]) for path in self._folder.iterdir() if (found := _SECOND.match(path.name))]
        second = max([int(time.time()), *(one + 1 for one in before)])
        path = self._folder / f"events.out.tfevents.{second:010d}.{socket.gethostname()}.{os.getpid()}.0"
        return path, KeptFile(path, new=True)

    def _append(self, file: KeptFile, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        event = Event(wall_time=time.time(), step=step, **content)
        try:
            RecordWriter(file).write(event.SerializeToString())
        except OSError as error:
            self._file = None
            if isinstance(error, Gone):
                self._described.clear()  # with the file that had the words
            with suppress(Gone):
                file.close()
            raise


def names_depth_plainly(folder: Path) -> bool:
    """Whether the event files in `folder` have `depth/...` under that very name, as those of earlier versions do: such
    a run goes on with it, for what is written cannot be renamed, and two sets of half curves would help nobody.

    The first such tag tells; where the first files have none within 64 MiB, nothing plain is there.
    """
    blocks = _MOST_BLOCKS
    for path in sorted(folder.glob("*.tfevents.*")):
        with open(path, "rb") as file:
            before = b""
            while blocks and (block := file.read(_BLOCK_BYTES)):
                if found := _OF_DEPTH.search(before + block):
                    return found[1] is None
                before, blocks = block[-64:], blocks - 1
    return False
